"""The named algorithms {policy}{objective} and their configs.

Each config is its objective's with a policy; the constructor takes the policy's fields, too. What
type checkers and editors know of them is in `named.pyi`, which `python -m tests.typing.stubs`
writes.
"""

from __future__ import annotations

import dataclasses

from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory

from spin_d3rlpy.algos.awac import AWAC, AWACConfig
from spin_d3rlpy.algos.bc import BC, BCConfig
from spin_d3rlpy.algos.bcq import BCQ, BCQConfig
from spin_d3rlpy.algos.config import encoder_field, takes_policy_fields
from spin_d3rlpy.algos.idql import IDQL, IDQLConfig
from spin_d3rlpy.algos.iql import IQL, IQLConfig
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


@takes_policy_fields
@dataclasses.dataclass()
class SPINIQLConfig(IQLConfig):
    """The config of `SPINIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: SPINEncoderFactory = encoder_field(SPINEncoderFactory)


class SPINIQL(IQL, name="spin_iql"):
    """SPIN with implicit Q-learning; pre-trains the ASM unless one is given."""

    config_class = SPINIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class SAINTIQLConfig(IQLConfig):
    """The config of `SAINTIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: SAINTEncoderFactory = encoder_field(SAINTEncoderFactory)


class SAINTIQL(IQL, name="spin_saint_iql"):
    """The SPIN network trained end to end with implicit Q-learning."""

    config_class = SAINTIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class FactoredIQLConfig(IQLConfig):
    """The config of `FactoredIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)


class FactoredIQL(IQL, name="spin_factored_iql"):
    """Independent slots with implicit Q-learning."""

    config_class = FactoredIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class AutoregressiveIQLConfig(IQLConfig):
    """The config of `AutoregressiveIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: AutoregressiveEncoderFactory = encoder_field(
        AutoregressiveEncoderFactory
    )


class AutoregressiveIQL(IQL, name="spin_autoregressive_iql"):
    """Slot after slot with implicit Q-learning."""

    config_class = AutoregressiveIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINDistillIQLConfig(IQLConfig):
    """The config of `SPINDistillIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: SPINDistillEncoderFactory = encoder_field(SPINDistillEncoderFactory)


class SPINDistillIQL(IQL, name="spin_distill_iql"):
    """SPIN-Distill with implicit Q-learning; pre-trains an ASM unless one is given."""

    config_class = SPINDistillIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class RePreMIQLConfig(IQLConfig):
    """The config of `RePreMIQL`: fields of `IQLConfig` and of its policy."""

    actor_encoder_factory: RePreMEncoderFactory = encoder_field(RePreMEncoderFactory)


class RePreMIQL(IQL, name="spin_reprem_iql"):
    """RePreM with implicit Q-learning, after its pre-training."""

    config_class = RePreMIQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINIDQLConfig(IDQLConfig):
    """The config of `SPINIDQL`: fields of `IDQLConfig` and of its policy."""

    actor_encoder_factory: JointEncoderFactory = encoder_field(JointEncoderFactory)


class SPINIDQL(IDQL, name="spin_idql"):
    """The best of several samples of the pre-trained ASM, by implicit Q-learning's critics."""

    config_class = SPINIDQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class SAINTIDQLConfig(IDQLConfig):
    """The config of `SAINTIDQL`: fields of `IDQLConfig` and of its policy."""

    actor_encoder_factory: SAINTEncoderFactory = encoder_field(SAINTEncoderFactory)


class SAINTIDQL(IDQL, name="spin_saint_idql"):
    """The best of several samples of a cloned SAINT policy."""

    config_class = SAINTIDQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class FactoredIDQLConfig(IDQLConfig):
    """The config of `FactoredIDQL`: fields of `IDQLConfig` and of its policy."""

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)


class FactoredIDQL(IDQL, name="spin_factored_idql"):
    """The best of several samples of cloned independent slots."""

    config_class = FactoredIDQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class AutoregressiveIDQLConfig(IDQLConfig):
    """The config of `AutoregressiveIDQL`: fields of `IDQLConfig` and of its policy."""

    actor_encoder_factory: AutoregressiveEncoderFactory = encoder_field(
        AutoregressiveEncoderFactory
    )


class AutoregressiveIDQL(IDQL, name="spin_autoregressive_idql"):
    """The best of several samples of a cloned autoregressive policy."""

    config_class = AutoregressiveIDQLConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINAWACConfig(AWACConfig):
    """The config of `SPINAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: SPINEncoderFactory = encoder_field(SPINEncoderFactory)


class SPINAWAC(AWAC, name="spin_awac"):
    """SPIN with advantage-weighted actor-critic; pre-trains the ASM unless one is given."""

    config_class = SPINAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class SAINTAWACConfig(AWACConfig):
    """The config of `SAINTAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: SAINTEncoderFactory = encoder_field(SAINTEncoderFactory)


class SAINTAWAC(AWAC, name="spin_saint_awac"):
    """The SPIN network trained end to end with advantage-weighted actor-critic."""

    config_class = SAINTAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class FactoredAWACConfig(AWACConfig):
    """The config of `FactoredAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)


class FactoredAWAC(AWAC, name="spin_factored_awac"):
    """Independent slots with advantage-weighted actor-critic."""

    config_class = FactoredAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class AutoregressiveAWACConfig(AWACConfig):
    """The config of `AutoregressiveAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: AutoregressiveEncoderFactory = encoder_field(
        AutoregressiveEncoderFactory
    )


class AutoregressiveAWAC(AWAC, name="spin_autoregressive_awac"):
    """Slot after slot with advantage-weighted actor-critic."""

    config_class = AutoregressiveAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINDistillAWACConfig(AWACConfig):
    """The config of `SPINDistillAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: SPINDistillEncoderFactory = encoder_field(SPINDistillEncoderFactory)


class SPINDistillAWAC(AWAC, name="spin_distill_awac"):
    """SPIN-Distill with advantage-weighted actor-critic; pre-trains an ASM unless one is given."""

    config_class = SPINDistillAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class RePreMAWACConfig(AWACConfig):
    """The config of `RePreMAWAC`: fields of `AWACConfig` and of its policy."""

    actor_encoder_factory: RePreMEncoderFactory = encoder_field(RePreMEncoderFactory)


class RePreMAWAC(AWAC, name="spin_reprem_awac"):
    """RePreM with advantage-weighted actor-critic, after its pre-training."""

    config_class = RePreMAWACConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINBCQConfig(BCQConfig):
    """The config of `SPINBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: SPINEncoderFactory = encoder_field(SPINEncoderFactory)


class SPINBCQ(BCQ, name="spin_bcq"):
    """SPIN with batch-constrained Q-learning; pre-trains the ASM unless one is given."""

    config_class = SPINBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class SAINTBCQConfig(BCQConfig):
    """The config of `SAINTBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: SAINTEncoderFactory = encoder_field(SAINTEncoderFactory)


class SAINTBCQ(BCQ, name="spin_saint_bcq"):
    """The SPIN network trained end to end with batch-constrained Q-learning."""

    config_class = SAINTBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class FactoredBCQConfig(BCQConfig):
    """The config of `FactoredBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder_of_bcq)


class FactoredBCQ(BCQ, name="spin_factored_bcq"):
    """Independent slots with batch-constrained Q-learning."""

    config_class = FactoredBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class AutoregressiveBCQConfig(BCQConfig):
    """The config of `AutoregressiveBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: AutoregressiveEncoderFactory = encoder_field(
        AutoregressiveEncoderFactory
    )


class AutoregressiveBCQ(BCQ, name="spin_autoregressive_bcq"):
    """Slot after slot with batch-constrained Q-learning."""

    config_class = AutoregressiveBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINDistillBCQConfig(BCQConfig):
    """The config of `SPINDistillBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: SPINDistillEncoderFactory = encoder_field(SPINDistillEncoderFactory)


class SPINDistillBCQ(BCQ, name="spin_distill_bcq"):
    """SPIN-Distill with batch-constrained Q-learning; pre-trains an ASM unless one is given."""

    config_class = SPINDistillBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class RePreMBCQConfig(BCQConfig):
    """The config of `RePreMBCQ`: fields of `BCQConfig` and of its policy."""

    actor_encoder_factory: RePreMEncoderFactory = encoder_field(RePreMEncoderFactory)


class RePreMBCQ(BCQ, name="spin_reprem_bcq"):
    """RePreM with batch-constrained Q-learning, after its pre-training."""

    config_class = RePreMBCQConfig


@takes_policy_fields
@dataclasses.dataclass()
class SPINBCConfig(BCConfig):
    """The config of `SPINBC`: fields of `BCConfig` and of its policy."""

    actor_encoder_factory: SPINEncoderFactory = encoder_field(SPINEncoderFactory)


class SPINBC(BC, name="spin_bc"):
    """SPIN with behavior cloning; pre-trains the ASM unless one is given."""

    config_class = SPINBCConfig


@takes_policy_fields
@dataclasses.dataclass()
class SAINTBCConfig(BCConfig):
    """The config of `SAINTBC`: fields of `BCConfig` and of its policy."""

    actor_encoder_factory: SAINTEncoderFactory = encoder_field(SAINTEncoderFactory)


class SAINTBC(BC, name="spin_saint_bc"):
    """The SPIN network trained end to end with behavior cloning."""

    config_class = SAINTBCConfig


@takes_policy_fields
@dataclasses.dataclass()
class FactoredBCConfig(BCConfig):
    """The config of `FactoredBC`: fields of `BCConfig` and of its policy."""

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)


class FactoredBC(BC, name="spin_factored_bc"):
    """Independent slots with behavior cloning."""

    config_class = FactoredBCConfig


@takes_policy_fields
@dataclasses.dataclass()
class AutoregressiveBCConfig(BCConfig):
    """The config of `AutoregressiveBC`: fields of `BCConfig` and of its policy."""

    actor_encoder_factory: AutoregressiveEncoderFactory = encoder_field(
        AutoregressiveEncoderFactory
    )


class AutoregressiveBC(BC, name="spin_autoregressive_bc"):
    """Slot after slot with behavior cloning."""

    config_class = AutoregressiveBCConfig
