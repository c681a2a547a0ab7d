"""A policy: independent slots, one linear map from the state to all slots' logits."""

import dataclasses

from torch import nn

from spin_d3rlpy import IQL, PolicyFactory
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import IndependentPolicy


class LinearPolicy(IndependentPolicy):
    """The network; where slots depend on each other, write `log_prob` and `conditionals`."""

    def __init__(self, observation_size, nvec, scale):
        super().__init__(SlotLayout(nvec))
        self.heads = nn.Linear(observation_size, sum(nvec))
        self.scale = scale

    def forward(self, observations):
        """Returns logits, flat `(B, S)`, slot after slot."""
        return self.scale * self.heads(observations)


@dataclasses.dataclass()
class Linear(PolicyFactory, name="outside_linear"):
    """Its fields, which users set: `LinearIQL(policy=Linear(scale=2.0))`. Files have its name."""

    scale: float = 1.0

    def create_policy(self, observation_size, nvec):
        """Returns the network."""
        return LinearPolicy(observation_size, nvec, self.scale)


class LinearIQL(IQL[Linear], policy=Linear):
    """A name for an objective with this policy."""
