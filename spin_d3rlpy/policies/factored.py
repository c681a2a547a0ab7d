"""The factored policy: one network with one linear head per slot, slots independent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from d3rlpy.models.torch.encoders import Encoder, compute_output_size
from torch import nn

from spin_d3rlpy.fast import replace_dropout
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.base import IndependentPolicy
from spin_d3rlpy.precision import outputs_of


class FactoredPolicy(IndependentPolicy):
    """Any d3rlpy encoder followed by one linear head per slot."""

    def __init__(
        self, observation_shape: Sequence[int], encoder: Encoder, nvec: Sequence[int]
    ) -> None:
        super().__init__(SlotLayout(nvec))
        self.encoder = replace_dropout(encoder)
        # All heads side by side: row block i of the weight is slot i's head.
        self.heads = nn.Linear(compute_output_size([observation_shape], encoder), sum(nvec))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        return outputs_of([(self.encoder, self.heads)], observations).squeeze(0)
