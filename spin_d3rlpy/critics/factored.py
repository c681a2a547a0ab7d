"""Factored action values: one number per choice of each slot, added up over slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from d3rlpy.types import TorchObservation
from torch import nn

from spin_d3rlpy import fast
from spin_d3rlpy.critics.base import ActionCritic, create_encoder
from spin_d3rlpy.errors import require_one_of
from spin_d3rlpy.fast.precision import in_float32, outputs_of
from spin_d3rlpy.nvec import SlotLayout

Decomposition = Literal["sum", "mean"]


def combine_slots(values: torch.Tensor, decomposition: Decomposition) -> torch.Tensor:
    """Adds or averages per-slot values `(..., N)` to the joint value `(...)`."""
    return values.sum(-1) if decomposition == "sum" else values.mean(-1)


class FactoredQFunction(nn.Module):
    """Maps observations `(B, obs)` to the utilities `U_i(s, k)` of every choice, flat `(B, S)`."""

    def __init__(
        self, observation_shape: Sequence[int], encoder_factory: EncoderFactory, nvec: Sequence[int]
    ) -> None:
        super().__init__()
        self.encoder = create_encoder(encoder_factory, observation_shape)
        self.head = nn.Linear(compute_output_size([observation_shape], self.encoder), sum(nvec))

    def forward(self, observations: TorchObservation) -> torch.Tensor:
        """Returns utilities `(B, S)`."""
        return outputs_of([(self.encoder, self.head)], observations).squeeze(0)

    def sum_of(self, observations: TorchObservation, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the sum of each row's utilities at `outputs` `(B, N)`, `(B,)`, and no others."""
        weight, bias = self.head.weight, self.head.bias
        return in_float32(
            lambda x: fast.sum_of_outputs(x, weight, bias, outputs), self.encoder(observations)
        )


class FactoredCritic(ActionCritic):
    """An ensemble of E factored Q functions, with `Q(s, a) = combine_i U_i(s, a_i)`.

    Args:
        observation_shape: shape of one observation.
        encoder_factory: d3rlpy factory of each member's hidden layers.
        nvec: number of choices of each slot.
        n_critics: number of members (E).
        decomposition: `"sum"` (SPIN's code) or `"mean"` (DecQN, Seyde et al. 2023) over slots.
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        encoder_factory: EncoderFactory,
        nvec: Sequence[int],
        n_critics: int = 2,
        decomposition: Decomposition = "sum",
    ) -> None:
        require_one_of("decomposition", decomposition, Decomposition)
        super().__init__(
            FactoredQFunction(observation_shape, encoder_factory, nvec) for _ in range(n_critics)
        )
        self.decomposition: Decomposition = decomposition

    def utilities(self, observations: TorchObservation) -> torch.Tensor:
        """Returns the utilities of all choices, `(E, B, S)`."""
        members = cast("list[FactoredQFunction]", list(self))
        return outputs_of([(q.encoder, q.head) for q in members], observations)

    def values(
        self, slot_layout: SlotLayout, utilities: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, [A,] B)`, by utilities `(E, B, S)` of actions `([A,] B, N)`."""
        shape = len(utilities), *actions.shape[:-1]
        if actions.dim() == 3:  # A actions of each row
            utilities = utilities[:, None]
        chosen = slot_layout.gather(utilities.expand(*shape, -1), actions.expand(*shape, -1))
        return combine_slots(chosen, self.decomposition)

    def q_values(
        self, slot_layout: SlotLayout, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, [A,] B)`, for actions `([A,] B, N)`.

        On CPUs utilities of choices that were not taken are not computed.
        """
        if actions.dim() == 3 or not fast.is_on() or slot_layout.offsets.device.type != "cpu":
            return self.values(slot_layout, self.utilities(observations), actions)
        outputs = slot_layout.positions(actions)
        members = cast("list[FactoredQFunction]", list(self))
        values = torch.stack([q.sum_of(observations, outputs) for q in members])
        return values if self.decomposition == "sum" else values / slot_layout.n_slots
