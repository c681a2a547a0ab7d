"""BraVE's network: values of complete actions and of what is below them in a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from torch import nn

from spin_d3rlpy.fast.precision import outputs_of
from spin_d3rlpy.images import image_encoder
from spin_d3rlpy.nvec import SlotLayout


class BranchValues(nn.Module):
    """Maps observations and complete actions to action values and branch values.

    A node of the tree of actions has at most `C = sum(nvec) - N` children, one for every choice
    that is not the default. Output 0 is `Q(s, a)`; output `1 + j` estimates the largest value in
    the subtree of the node's j-th child.

    Args:
        observation_shape: shape of one observation.
        encoder_factory: d3rlpy factory of the hidden layers.
        slot_layout: of the action space.
    """

    columns: torch.Tensor  # (C,): flat positions of choices that are not the default

    def __init__(
        self,
        observation_shape: Sequence[int],
        encoder_factory: EncoderFactory,
        slot_layout: SlotLayout,
    ) -> None:
        super().__init__()
        self.slot_layout = slot_layout
        with torch.device("cpu"):
            positions = torch.arange(slot_layout.total)
            columns = positions[~torch.isin(positions, slot_layout.offsets.cpu())]
        self.register_buffer("columns", columns, persistent=False)
        self.images, encoded_size = image_encoder(observation_shape[0])
        shape = (encoded_size + len(columns),)
        self.encoder = encoder_factory.create(shape)
        self.head = nn.Linear(compute_output_size([shape], self.encoder), 1 + len(columns))

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns values `(B, 1 + C)` for observations `(B, obs)` and actions `(B, N)`."""
        observations = self.images(observations)
        positions = self.slot_layout.positions(actions)
        one_hot = observations.new_zeros(observations.shape[0], self.slot_layout.total)
        choices = one_hot.scatter(1, positions, 1.0).index_select(1, self.columns)
        inputs = torch.cat([observations, choices], dim=1)
        return outputs_of([(self.encoder, self.head)], inputs).squeeze(0)
