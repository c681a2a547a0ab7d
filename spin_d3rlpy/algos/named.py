"""The named algorithms, {objective} x {policy}: each is an objective with a default policy."""

from __future__ import annotations

import dataclasses

from d3rlpy.base import DeviceArg, register_learnable
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory

from spin_d3rlpy.algos.encoder_fields import encoder_field
from spin_d3rlpy.algos.iql import IQL, IQLConfig
from spin_d3rlpy.algos.spin import SPINMixin
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.policies import SAINTEncoderFactory, SPINEncoderFactory


def factored_encoder() -> VectorEncoderFactory:
    """The factored policy's hidden layers in SPIN's published code."""
    return VectorEncoderFactory(hidden_units=[256, 256], dropout_rate=0.1)


@dataclasses.dataclass()
class SPINIQLConfig(IQLConfig):
    """IQL with the SPIN policy: `IQLConfig`, a frozen ASM trunk, learned queries and heads.

    Args:
        actor_encoder_factory: the Transformer's sizes and how queries and heads start.
        pretraining: stage 1, the ASM's pre-training.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(SPINEncoderFactory)
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> SPINIQL:
        """Returns the algorithm on `device`."""
        return SPINIQL(self, device, enable_ddp)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_iql"


class SPINIQL(SPINMixin, IQL[SPINIQLConfig]):
    """SPIN with IQL: `fit` pre-trains the ASM (unless one is given), then trains."""

    config_class = SPINIQLConfig


@dataclasses.dataclass()
class SAINTIQLConfig(IQLConfig):
    """IQL with the SPIN policy's network trained end to end, nothing pre-trained.

    Args:
        actor_encoder_factory: the Transformer's sizes.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(SAINTEncoderFactory)

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> SAINTIQL:
        """Returns the algorithm on `device`."""
        return SAINTIQL(self, device, enable_ddp)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_saint_iql"


class SAINTIQL(IQL[SAINTIQLConfig]):
    """SAINT with IQL."""

    config_class = SAINTIQLConfig


@dataclasses.dataclass()
class FactoredIQLConfig(IQLConfig):
    """IQL with independent slots: one MLP, one linear head per slot (the paper's F-IQL).

    Args:
        actor_encoder_factory: the policy's hidden layers.
    """

    actor_encoder_factory: EncoderFactory = encoder_field(factored_encoder)

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> FactoredIQL:
        """Returns the algorithm on `device`."""
        return FactoredIQL(self, device, enable_ddp)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_factored_iql"


class FactoredIQL(IQL[FactoredIQLConfig]):
    """Factored IQL."""

    config_class = FactoredIQLConfig


register_learnable(SPINIQLConfig)
register_learnable(SAINTIQLConfig)
register_learnable(FactoredIQLConfig)
