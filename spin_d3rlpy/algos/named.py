"""The named algorithms {policy}{objective}, one line each, and their configs."""

from __future__ import annotations

from typing import Any

from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy.algos.awac import AWAC
from spin_d3rlpy.algos.bc import BC
from spin_d3rlpy.algos.bcq import BCQ
from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.algos.iql import IQL
from spin_d3rlpy.policies import (
    AutoregressiveEncoderFactory,
    JointEncoderFactory,
    RePreMEncoderFactory,
    SAINTEncoderFactory,
    SPINDistillEncoderFactory,
    SPINEncoderFactory,
)


def factored_encoder() -> VectorEncoderFactory:
    """The factored policy's hidden layers in SPIN's published code."""
    return VectorEncoderFactory(hidden_units=[256, 256], dropout_rate=0.1)


def factored_encoder_of_bcq() -> VectorEncoderFactory:
    """The same under BCQ: without dropout, as in the published code."""
    return VectorEncoderFactory(hidden_units=[256, 256])


class SPINIQL(IQL, name="spin_iql", policy=SPINEncoderFactory): ...


class SAINTIQL(IQL, name="spin_saint_iql", policy=SAINTEncoderFactory): ...


class FactoredIQL(IQL, name="spin_factored_iql", policy=factored_encoder): ...


class AutoregressiveIQL(
    IQL, name="spin_autoregressive_iql", policy=AutoregressiveEncoderFactory
): ...


class SPINDistillIQL(IQL, name="spin_distill_iql", policy=SPINDistillEncoderFactory): ...


class RePreMIQL(IQL, name="spin_reprem_iql", policy=RePreMEncoderFactory): ...


class SPINIDQL(IDQL, name="spin_idql", policy=JointEncoderFactory): ...


class SAINTIDQL(IDQL, name="spin_saint_idql", policy=SAINTEncoderFactory): ...


class FactoredIDQL(IDQL, name="spin_factored_idql", policy=factored_encoder): ...


class AutoregressiveIDQL(
    IDQL, name="spin_autoregressive_idql", policy=AutoregressiveEncoderFactory
): ...


class SPINAWAC(AWAC, name="spin_awac", policy=SPINEncoderFactory): ...


class SAINTAWAC(AWAC, name="spin_saint_awac", policy=SAINTEncoderFactory): ...


class FactoredAWAC(AWAC, name="spin_factored_awac", policy=factored_encoder): ...


class AutoregressiveAWAC(
    AWAC, name="spin_autoregressive_awac", policy=AutoregressiveEncoderFactory
): ...


class SPINDistillAWAC(AWAC, name="spin_distill_awac", policy=SPINDistillEncoderFactory): ...


class RePreMAWAC(AWAC, name="spin_reprem_awac", policy=RePreMEncoderFactory): ...


class SPINBCQ(BCQ, name="spin_bcq", policy=SPINEncoderFactory): ...


class SAINTBCQ(BCQ, name="spin_saint_bcq", policy=SAINTEncoderFactory): ...


class FactoredBCQ(BCQ, name="spin_factored_bcq", policy=factored_encoder_of_bcq): ...


class AutoregressiveBCQ(
    BCQ, name="spin_autoregressive_bcq", policy=AutoregressiveEncoderFactory
): ...


class SPINDistillBCQ(BCQ, name="spin_distill_bcq", policy=SPINDistillEncoderFactory): ...


class RePreMBCQ(BCQ, name="spin_reprem_bcq", policy=RePreMEncoderFactory): ...


class SPINBC(BC, name="spin_bc", policy=SPINEncoderFactory): ...


class SAINTBC(BC, name="spin_saint_bc", policy=SAINTEncoderFactory): ...


class FactoredBC(BC, name="spin_factored_bc", policy=factored_encoder): ...


class AutoregressiveBC(BC, name="spin_autoregressive_bc", policy=AutoregressiveEncoderFactory): ...


def __getattr__(name: str) -> Any:
    algorithm = globals().get(name.removesuffix("Config"))
    if not name.endswith("Config") or algorithm is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return algorithm.config_class
