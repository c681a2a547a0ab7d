"""The named algorithms, {objective} x {policy}: each is an objective with a default policy.

| policy         | IQL                 | AWAC                 | BCQ and BC                       |
|----------------|---------------------|----------------------|----------------------------------|
| SPIN           | `SPINIQL`           | `SPINAWAC`           | `SPINBCQ`, `SPINBC`              |
| SPIN-Distill   | `SPINDistillIQL`    | `SPINDistillAWAC`    | `SPINDistillBCQ`                 |
| RePreM         | `RePreMIQL`         | `RePreMAWAC`         | `RePreMBCQ`                      |
| SAINT          | `SAINTIQL`          | `SAINTAWAC`          | `SAINTBCQ`, `SAINTBC`            |
| factored       | `FactoredIQL`       | `FactoredAWAC`       | `FactoredBCQ`, `FactoredBC`      |
| autoregressive | `AutoregressiveIQL` | `AutoregressiveAWAC` | `AutoregressiveBCQ`, `...BC`     |

An objective's file says what is minimized; a policy's fields, below, which network is trained.
"""

from __future__ import annotations

import dataclasses

from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory

from spin_d3rlpy.algos.awac import AWAC, AWACConfig
from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.bc import BC, BCConfig
from spin_d3rlpy.algos.bcq import BCQ, BCQConfig
from spin_d3rlpy.algos.distill import SPINDistillMixin
from spin_d3rlpy.algos.encoder_fields import encoder_field
from spin_d3rlpy.algos.iql import IQL, IQLConfig
from spin_d3rlpy.algos.reprem import RePreMMixin
from spin_d3rlpy.algos.spin import SPINMixin
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.policies import (
    AutoregressiveEncoderFactory,
    RePreMEncoderFactory,
    SAINTEncoderFactory,
    SPINDistillEncoderFactory,
    SPINEncoderFactory,
)
from spin_d3rlpy.reprem import RePreMPretrainingConfig

# -- the policies' fields --------------------------------------------------------------------


@dataclasses.dataclass()
class SPINFields:
    """The SPIN policy: a frozen ASM trunk, learned queries and heads.

    Args:
        actor_encoder_factory: the Transformer's sizes and how queries and heads start.
        pretraining: stage 1, the ASM's pre-training.
        cache_features: once the queries no longer change (`train_queries` of the encoder factory
            is False or a number of steps), compute the trunk's features of the whole dataset and
            train heads and critics on these alone. The trunk's dropout is off then, and features
            are rounded to bfloat16.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(SPINEncoderFactory)
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)
    cache_features: bool = False


@dataclasses.dataclass()
class SPINDistillFields:
    """The SPIN-Distill policy: a frozen, attention-free student of an ASM's trunk, and heads.

    Args:
        actor_encoder_factory: sizes of teacher and student, and which queries it is taught.
        pretraining: stage 1, the teacher's pre-training.
        distillation: how the student is taught.
        cache_features: compute the student's features of the whole dataset once and train heads
            and critics on these alone. They are rounded to bfloat16.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(SPINDistillEncoderFactory)
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)
    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    cache_features: bool = True


@dataclasses.dataclass()
class RePreMFields:
    """The RePreM policy: a frozen state encoder that was pre-trained on trajectories, and heads.

    Args:
        actor_encoder_factory: sizes of the pre-trained model and the heads.
        pretraining: stage 1.
        cache_features: compute the encoder's features of the whole dataset once and train heads
            and critics on these alone. They are rounded to bfloat16.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(RePreMEncoderFactory)
    pretraining: RePreMPretrainingConfig = dataclasses.field(
        default_factory=RePreMPretrainingConfig
    )
    cache_features: bool = False


@dataclasses.dataclass()
class SAINTFields:
    """The SPIN policy's network trained end to end, nothing pre-trained.

    Args:
        actor_encoder_factory: the Transformer's sizes.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(SAINTEncoderFactory)


def factored_encoder() -> VectorEncoderFactory:
    """The factored policy's hidden layers in SPIN's published code."""
    return VectorEncoderFactory(hidden_units=[256, 256], dropout_rate=0.1)


@dataclasses.dataclass()
class FactoredFields:
    """Independent slots: one MLP, one linear head per slot (the paper's F-).

    Args:
        actor_encoder_factory: the policy's hidden layers.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)


@dataclasses.dataclass()
class AutoregressiveFields:
    """Slots one after the other, each in view of those before it (the paper's AR-).

    Args:
        actor_encoder_factory: the LSTM's sizes.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(AutoregressiveEncoderFactory)


# -- IQL -------------------------------------------------------------------------------------


@dataclasses.dataclass()
class SPINIQLConfig(SPINFields, IQLConfig):
    """IQL with the SPIN policy: `IQLConfig` and `SPINFields`."""


@register("spin_iql")
class SPINIQL(SPINMixin, IQL[SPINIQLConfig]):
    """SPIN with implicit Q-learning, after pre-training the ASM unless one is given."""

    config_class = SPINIQLConfig


@dataclasses.dataclass()
class SPINDistillIQLConfig(SPINDistillFields, IQLConfig):
    """IQL with the SPIN-Distill policy: `IQLConfig` and `SPINDistillFields`."""


@register("spin_distill_iql")
class SPINDistillIQL(SPINDistillMixin, IQL[SPINDistillIQLConfig]):
    """SPIN-Distill with implicit Q-learning; pre-trains an ASM unless one is given."""

    config_class = SPINDistillIQLConfig


@dataclasses.dataclass()
class RePreMIQLConfig(RePreMFields, IQLConfig):
    """IQL with the RePreM policy: `IQLConfig` and `RePreMFields`."""


@register("spin_reprem_iql")
class RePreMIQL(RePreMMixin, IQL[RePreMIQLConfig]):
    """RePreM with implicit Q-learning, after its pre-training."""

    config_class = RePreMIQLConfig


@dataclasses.dataclass()
class SAINTIQLConfig(SAINTFields, IQLConfig):
    """IQL with the SAINT policy: `IQLConfig` and `SAINTFields`."""


@register("spin_saint_iql")
class SAINTIQL(IQL[SAINTIQLConfig]):
    """The SPIN network trained end to end with implicit Q-learning."""

    config_class = SAINTIQLConfig


@dataclasses.dataclass()
class FactoredIQLConfig(FactoredFields, IQLConfig):
    """IQL with the factored policy: `IQLConfig` and `FactoredFields`."""


@register("spin_factored_iql")
class FactoredIQL(IQL[FactoredIQLConfig]):
    """Independent slots with implicit Q-learning."""

    config_class = FactoredIQLConfig


@dataclasses.dataclass()
class AutoregressiveIQLConfig(AutoregressiveFields, IQLConfig):
    """IQL with the autoregressive policy: `IQLConfig` and `AutoregressiveFields`."""


@register("spin_autoregressive_iql")
class AutoregressiveIQL(IQL[AutoregressiveIQLConfig]):
    """Slot after slot with implicit Q-learning."""

    config_class = AutoregressiveIQLConfig


# -- AWAC ------------------------------------------------------------------------------------


@dataclasses.dataclass()
class SPINAWACConfig(SPINFields, AWACConfig):
    """AWAC with the SPIN policy: `AWACConfig` and `SPINFields`."""


@register("spin_awac")
class SPINAWAC(SPINMixin, AWAC[SPINAWACConfig]):
    """SPIN with advantage-weighted actor-critic, after pre-training the ASM unless one is given."""

    config_class = SPINAWACConfig


@dataclasses.dataclass()
class SPINDistillAWACConfig(SPINDistillFields, AWACConfig):
    """AWAC with the SPIN-Distill policy: `AWACConfig` and `SPINDistillFields`."""


@register("spin_distill_awac")
class SPINDistillAWAC(SPINDistillMixin, AWAC[SPINDistillAWACConfig]):
    """SPIN-Distill with advantage-weighted actor-critic; pre-trains an ASM unless one is given."""

    config_class = SPINDistillAWACConfig


@dataclasses.dataclass()
class RePreMAWACConfig(RePreMFields, AWACConfig):
    """AWAC with the RePreM policy: `AWACConfig` and `RePreMFields`."""


@register("spin_reprem_awac")
class RePreMAWAC(RePreMMixin, AWAC[RePreMAWACConfig]):
    """RePreM with advantage-weighted actor-critic, after its pre-training."""

    config_class = RePreMAWACConfig


@dataclasses.dataclass()
class SAINTAWACConfig(SAINTFields, AWACConfig):
    """AWAC with the SAINT policy: `AWACConfig` and `SAINTFields`."""


@register("spin_saint_awac")
class SAINTAWAC(AWAC[SAINTAWACConfig]):
    """The SPIN network trained end to end with advantage-weighted actor-critic."""

    config_class = SAINTAWACConfig


@dataclasses.dataclass()
class FactoredAWACConfig(FactoredFields, AWACConfig):
    """AWAC with the factored policy: `AWACConfig` and `FactoredFields`."""


@register("spin_factored_awac")
class FactoredAWAC(AWAC[FactoredAWACConfig]):
    """Independent slots with advantage-weighted actor-critic."""

    config_class = FactoredAWACConfig


@dataclasses.dataclass()
class AutoregressiveAWACConfig(AutoregressiveFields, AWACConfig):
    """AWAC with the autoregressive policy: `AWACConfig` and `AutoregressiveFields`."""


@register("spin_autoregressive_awac")
class AutoregressiveAWAC(AWAC[AutoregressiveAWACConfig]):
    """Slot after slot with advantage-weighted actor-critic."""

    config_class = AutoregressiveAWACConfig


# -- BCQ -------------------------------------------------------------------------------------


@dataclasses.dataclass()
class SPINBCQConfig(SPINFields, BCQConfig):
    """BCQ with the SPIN policy: `BCQConfig` and `SPINFields`."""


@register("spin_bcq")
class SPINBCQ(SPINMixin, BCQ[SPINBCQConfig]):
    """SPIN with batch-constrained Q-learning, after pre-training the ASM unless one is given."""

    config_class = SPINBCQConfig


@dataclasses.dataclass()
class SPINDistillBCQConfig(SPINDistillFields, BCQConfig):
    """BCQ with the SPIN-Distill policy: `BCQConfig` and `SPINDistillFields`."""


@register("spin_distill_bcq")
class SPINDistillBCQ(SPINDistillMixin, BCQ[SPINDistillBCQConfig]):
    """SPIN-Distill with batch-constrained Q-learning; pre-trains an ASM unless one is given."""

    config_class = SPINDistillBCQConfig


@dataclasses.dataclass()
class RePreMBCQConfig(RePreMFields, BCQConfig):
    """BCQ with the RePreM policy: `BCQConfig` and `RePreMFields`."""


@register("spin_reprem_bcq")
class RePreMBCQ(RePreMMixin, BCQ[RePreMBCQConfig]):
    """RePreM with batch-constrained Q-learning, after its pre-training."""

    config_class = RePreMBCQConfig


@dataclasses.dataclass()
class SAINTBCQConfig(SAINTFields, BCQConfig):
    """BCQ with the SAINT policy: `BCQConfig` and `SAINTFields`."""


@register("spin_saint_bcq")
class SAINTBCQ(BCQ[SAINTBCQConfig]):
    """The SPIN network trained end to end with batch-constrained Q-learning."""

    config_class = SAINTBCQConfig


@dataclasses.dataclass()
class FactoredBCQConfig(FactoredFields, BCQConfig):
    """BCQ with the factored policy: `BCQConfig` and `FactoredFields`.

    Without dropout, as in SPIN's published code.

    Args:
        actor_encoder_factory: the policy's hidden layers.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(
        lambda: VectorEncoderFactory(hidden_units=[256, 256])
    )


@register("spin_factored_bcq")
class FactoredBCQ(BCQ[FactoredBCQConfig]):
    """Independent slots with batch-constrained Q-learning."""

    config_class = FactoredBCQConfig


@dataclasses.dataclass()
class AutoregressiveBCQConfig(AutoregressiveFields, BCQConfig):
    """BCQ with the autoregressive policy: `BCQConfig` and `AutoregressiveFields`."""


@register("spin_autoregressive_bcq")
class AutoregressiveBCQ(BCQ[AutoregressiveBCQConfig]):
    """Slot after slot with batch-constrained Q-learning."""

    config_class = AutoregressiveBCQConfig


# -- BC --------------------------------------------------------------------------------------


@dataclasses.dataclass()
class SPINBCConfig(SPINFields, BCConfig):
    """BC with the SPIN policy: `BCConfig` and `SPINFields`."""


@register("spin_bc")
class SPINBC(SPINMixin, BC[SPINBCConfig]):
    """SPIN with behavior cloning, after pre-training the ASM unless one is given."""

    config_class = SPINBCConfig


@dataclasses.dataclass()
class SAINTBCConfig(SAINTFields, BCConfig):
    """BC with the SAINT policy: `BCConfig` and `SAINTFields`."""


@register("spin_saint_bc")
class SAINTBC(BC[SAINTBCConfig]):
    """The SPIN network trained end to end with behavior cloning."""

    config_class = SAINTBCConfig


@dataclasses.dataclass()
class FactoredBCConfig(FactoredFields, BCConfig):
    """BC with the factored policy: `BCConfig` and `FactoredFields`."""


@register("spin_factored_bc")
class FactoredBC(BC[FactoredBCConfig]):
    """Independent slots with behavior cloning."""

    config_class = FactoredBCConfig


@dataclasses.dataclass()
class AutoregressiveBCConfig(AutoregressiveFields, BCConfig):
    """BC with the autoregressive policy: `BCConfig` and `AutoregressiveFields`."""


@register("spin_autoregressive_bc")
class AutoregressiveBC(BC[AutoregressiveBCConfig]):
    """Slot after slot with behavior cloning."""

    config_class = AutoregressiveBCConfig
