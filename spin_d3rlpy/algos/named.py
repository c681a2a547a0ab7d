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


class SPINIQL(IQL, name="spin_iql", policy=SPINEncoderFactory):
    """SPIN with implicit Q-learning; pre-trains the ASM unless one is given."""


class SAINTIQL(IQL, name="spin_saint_iql", policy=SAINTEncoderFactory):
    """The SPIN network trained end to end with implicit Q-learning."""


class FactoredIQL(IQL, name="spin_factored_iql", policy=factored_encoder):
    """Independent slots with implicit Q-learning."""


class AutoregressiveIQL(IQL, name="spin_autoregressive_iql", policy=AutoregressiveEncoderFactory):
    """Slot after slot with implicit Q-learning."""


class SPINDistillIQL(IQL, name="spin_distill_iql", policy=SPINDistillEncoderFactory):
    """SPIN-Distill with implicit Q-learning; pre-trains an ASM unless one is given."""


class RePreMIQL(IQL, name="spin_reprem_iql", policy=RePreMEncoderFactory):
    """RePreM with implicit Q-learning, after its pre-training."""


class SPINIDQL(IDQL, name="spin_idql", policy=JointEncoderFactory):
    """The best of several samples of the pre-trained ASM, by implicit Q-learning's critics."""


class SAINTIDQL(IDQL, name="spin_saint_idql", policy=SAINTEncoderFactory):
    """The best of several samples of a cloned SAINT policy."""


class FactoredIDQL(IDQL, name="spin_factored_idql", policy=factored_encoder):
    """The best of several samples of cloned independent slots."""


class AutoregressiveIDQL(
    IDQL, name="spin_autoregressive_idql", policy=AutoregressiveEncoderFactory
):
    """The best of several samples of a cloned autoregressive policy."""


class SPINAWAC(AWAC, name="spin_awac", policy=SPINEncoderFactory):
    """SPIN with advantage-weighted actor-critic; pre-trains the ASM unless one is given."""


class SAINTAWAC(AWAC, name="spin_saint_awac", policy=SAINTEncoderFactory):
    """The SPIN network trained end to end with advantage-weighted actor-critic."""


class FactoredAWAC(AWAC, name="spin_factored_awac", policy=factored_encoder):
    """Independent slots with advantage-weighted actor-critic."""


class AutoregressiveAWAC(
    AWAC, name="spin_autoregressive_awac", policy=AutoregressiveEncoderFactory
):
    """Slot after slot with advantage-weighted actor-critic."""


class SPINDistillAWAC(AWAC, name="spin_distill_awac", policy=SPINDistillEncoderFactory):
    """SPIN-Distill with advantage-weighted actor-critic; pre-trains an ASM unless one is given."""


class RePreMAWAC(AWAC, name="spin_reprem_awac", policy=RePreMEncoderFactory):
    """RePreM with advantage-weighted actor-critic, after its pre-training."""


class SPINBCQ(BCQ, name="spin_bcq", policy=SPINEncoderFactory):
    """SPIN with batch-constrained Q-learning; pre-trains the ASM unless one is given."""


class SAINTBCQ(BCQ, name="spin_saint_bcq", policy=SAINTEncoderFactory):
    """The SPIN network trained end to end with batch-constrained Q-learning."""


class FactoredBCQ(BCQ, name="spin_factored_bcq", policy=factored_encoder_of_bcq):
    """Independent slots with batch-constrained Q-learning."""


class AutoregressiveBCQ(BCQ, name="spin_autoregressive_bcq", policy=AutoregressiveEncoderFactory):
    """Slot after slot with batch-constrained Q-learning."""


class SPINDistillBCQ(BCQ, name="spin_distill_bcq", policy=SPINDistillEncoderFactory):
    """SPIN-Distill with batch-constrained Q-learning; pre-trains an ASM unless one is given."""


class RePreMBCQ(BCQ, name="spin_reprem_bcq", policy=RePreMEncoderFactory):
    """RePreM with batch-constrained Q-learning, after its pre-training."""


class SPINBC(BC, name="spin_bc", policy=SPINEncoderFactory):
    """SPIN with behavior cloning; pre-trains the ASM unless one is given."""


class SAINTBC(BC, name="spin_saint_bc", policy=SAINTEncoderFactory):
    """The SPIN network trained end to end with behavior cloning."""


class FactoredBC(BC, name="spin_factored_bc", policy=factored_encoder):
    """Independent slots with behavior cloning."""


class AutoregressiveBC(BC, name="spin_autoregressive_bc", policy=AutoregressiveEncoderFactory):
    """Slot after slot with behavior cloning."""


def __getattr__(name: str) -> Any:
    algorithm = globals().get(name.removesuffix("Config"))
    if not name.endswith("Config") or algorithm is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return algorithm.config_class
