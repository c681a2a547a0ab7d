"""A policy: independent slots, one linear map from the state to all slots' logits."""

import dataclasses
from typing import NoReturn

from d3rlpy.models.encoders import register_encoder_factory
from torch import nn

from spin_d3rlpy.algos import IQL, IQLConfig
from spin_d3rlpy.algos.config import encoder_field, takes_policy_fields
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import IndependentPolicy, PolicyFactory


class LinearPolicy(IndependentPolicy):
    """The network; where slots depend on each other, write `log_prob` and `decode` instead."""

    def __init__(self, observation_size, nvec, scale):
        super().__init__(SlotLayout(nvec))
        self.heads = nn.Linear(observation_size, sum(nvec))
        self.scale = scale

    def forward(self, observations):
        """Returns logits, flat `(B, S)`, slot after slot."""
        return self.scale * self.heads(observations)


@dataclasses.dataclass()
class LinearFactory(PolicyFactory):
    """Its saved fields, which users can set: `LinearIQL(scale=2.0)`."""

    scale: float = 1.0

    def create_policy(self, observation_size, nvec):
        """Returns the network."""
        return LinearPolicy(observation_size, nvec, self.scale)

    def create(self, observation_shape) -> NoReturn:
        """Stock d3rlpy algorithms ask for an encoder, which this policy has not."""
        raise NotImplementedError("LinearFactory makes policies of spin-d3rlpy only.")

    @staticmethod
    def get_type():
        """Name under which d3rlpy saves it."""
        return "outside_linear"


register_encoder_factory(LinearFactory)


@takes_policy_fields
@dataclasses.dataclass()
class LinearIQLConfig(IQLConfig):
    """IQL's config with the policy."""

    actor_encoder_factory: LinearFactory = encoder_field(LinearFactory)


class LinearIQL(IQL, name="outside_linear_iql"):
    """Two classes per objective."""

    config_class = LinearIQLConfig
