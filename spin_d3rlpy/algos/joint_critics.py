"""Critics of whole actions: Q(s, a) of the state and the sum of what each choice adds.

Axes: `B` states, `A` actions of each state, `N` slots, `K` most choices of a slot, `S` all choices,
`W` width. A critic's first layer is linear in the choices, so that a change of one slot is one
subtraction and one addition there (`swaps`): that is what a search asks for, thousands of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from d3rlpy.types import TorchObservation
from torch import nn
from torch.nn.functional import embedding, embedding_bag, relu

from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.nvec import SlotLayout


class ChoicesOfSlots(nn.Module):
    """Adds up one embedding per slot and choice, `(S, W)`: nothing is shared between slots."""

    def __init__(self, layout: SlotLayout, width: int) -> None:
        super().__init__()
        self.layout = layout
        self.table = nn.Parameter(torch.randn(layout.total, width) * layout.n_slots**-0.5)

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns the sum over slots of actions `(..., N)`, `(..., W)`."""
        rows = self.layout.positions(actions)
        summed = embedding_bag(rows.flatten(0, -2), self.table, mode="sum")
        unflat: torch.Tensor = summed.unflatten(0, actions.shape[:-1])
        return unflat

    def swaps(
        self,
        total: torch.Tensor,
        actions: torch.Tensor,
        slot: int,
        rows: torch.Tensor,
        choices: torch.Tensor,
    ) -> torch.Tensor:
        """Returns sums `(R, W)` of actions of which one slot makes another choice.

        Args:
            total: sums of the actions, `(B, W)`.
            actions: `(B, N)`.
            slot: the slot that changes.
            rows: which of the actions, `(R,)`.
            choices: their slot's new choices, `(R,)`.
        """
        offset = self.layout.offsets[slot]
        without = total - embedding(actions[:, slot] + offset, self.table)
        return without[rows] + embedding(choices + offset, self.table)


class SharedChoices(nn.Module):
    """Adds up one embedding per choice, `(K, W)`, wherever it is made, and one for its presence.

    For slots that choose among the same things, such as the places of a page: what is learned of an
    item in one place holds in all others.
    """

    def __init__(self, layout: SlotLayout, width: int) -> None:
        super().__init__()
        self.n_choices = layout.max_choices
        scale = layout.n_slots**-0.5
        self.table = nn.Parameter(torch.randn(self.n_choices, width) * scale)
        self.presence = nn.Parameter(torch.randn(self.n_choices, width) * scale)

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns what actions `(..., N)` add up to, `(..., W)`."""
        counts = self._counts(actions)
        present = (counts > 0.0).to(counts.dtype)
        return counts @ self.table + present @ self.presence

    def swaps(
        self,
        total: torch.Tensor,
        actions: torch.Tensor,
        slot: int,
        rows: torch.Tensor,
        choices: torch.Tensor,
    ) -> torch.Tensor:
        """Returns sums `(R, W)` of changed actions; see `ChoicesOfSlots.swaps`."""
        before = actions[:, slot]
        others = self._counts(actions)
        others.scatter_add_(1, before[:, None], torch.full_like(others[:, :1], -1.0))
        leaves = (others.gather(1, before[:, None]) == 0.0).to(total.dtype)  # (B, 1)
        lost = embedding(before, self.table) + leaves * embedding(before, self.presence)
        comes = (others[rows, choices] == 0.0)[:, None].to(total.dtype)  # (R, 1)
        won = embedding(choices, self.table) + comes * embedding(choices, self.presence)
        return (total - lost)[rows] + won

    def _counts(self, actions: torch.Tensor) -> torch.Tensor:
        """How many slots make each choice, `(..., K)`."""
        counts = torch.zeros(*actions.shape[:-1], self.n_choices, device=actions.device)
        return counts.scatter_add(-1, actions, torch.ones_like(actions, dtype=counts.dtype))


class JointQFunction(nn.Module):
    """Maps observations and whole actions to values: `head(encoder(relu(norm(W s + sum a))))`.

    Args:
        observation_size: length of an observation.
        encoder_factory: d3rlpy factory of the hidden layers after the first one, whose width is
            that of the encoder's output.
        choices: what actions add in the first layer.
        width: of the first layer.
    """

    def __init__(
        self,
        observation_size: int,
        encoder_factory: EncoderFactory,
        choices: ChoicesOfSlots | SharedChoices,
        width: int,
    ) -> None:
        super().__init__()
        self.state = nn.Linear(observation_size, width)
        self.choices = choices
        self.norm = nn.LayerNorm(width)
        self.encoder = encoder_factory.create((width,))
        self.head = nn.Linear(compute_output_size([(width,)], self.encoder), 1)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns values `([A,] B)` of observations `(B, obs)` and actions `([A,] B, N)`."""
        return self.values(self.sums(observations, actions))

    def sums(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the first layer's sums, `([A,] B, W)`."""
        sums: torch.Tensor = self.state(observations) + self.choices.total(actions)
        return sums

    def values(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns the values `(...)` of the first layer's sums `(..., W)`."""
        hidden = self.encoder(relu(self.norm(sums)).flatten(0, -2))
        values: torch.Tensor = in_float32(self.head, hidden)[:, 0].unflatten(0, sums.shape[:-1])
        return values


class JointCritic(nn.ModuleList):
    """An ensemble of E functions `Q(s, a)`, which can value how choices go together.

    A `ModuleList` because d3rlpy copies and exports Q functions as one.

    Args:
        observation_shape: shape of one observation.
        encoder_factory: d3rlpy factory of each member's hidden layers after the first one.
        nvec: number of choices of each sub-action.
        n_critics: number of members (E).
        shared_choices: all slots choose among the same things.
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        encoder_factory: EncoderFactory,
        nvec: Sequence[int],
        n_critics: int = 2,
        shared_choices: bool = False,
    ) -> None:
        layout = SlotLayout(nvec)
        kind = SharedChoices if shared_choices else ChoicesOfSlots
        # The first layer is as wide as what follows it.
        width = compute_output_size([(1,)], encoder_factory.create((1,)))
        size = observation_shape[0]
        super().__init__(
            JointQFunction(size, encoder_factory, kind(layout, width), width)
            for _ in range(n_critics)
        )

    @property
    def members(self) -> list[JointQFunction]:
        """The E functions."""
        return cast("list[JointQFunction]", list(self))

    def q_values(
        self, layout: SlotLayout, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, [A,] B)`, for actions `([A,] B, N)`."""
        assert isinstance(observations, torch.Tensor)
        found: Any = [q(observations, actions.long()) for q in self.members]
        return torch.stack(found)
