"""Slots that nothing tells apart, such as those of two agents that stand in the same place.

One network for all slots chooses alike for them. Where that leads to the same place again, they
stay together for the rest of an episode, whatever their log did by chance.

Bounds are those of standing still. Of collectors' steps a third has such slots, and all that chose
alike stay together; of dials' 75 % do, of machines' 11 %.
"""

from __future__ import annotations

import torch
from torch import nn

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.search.standstill import (
    COMPARED_AT_ONCE,
    LEAST_AGAIN,
    LEAST_SHARE,
    followed_steps,
    return_less,
)
from spin_envs import ActionLayout


def things_of(layout: ActionLayout) -> list[list[int]]:
    """Returns the numbers of the slots that choose for each thing: those with the same columns."""
    slots: dict[tuple[int, ...], list[int]] = {}
    for slot, columns in enumerate(layout.slot_columns):
        slots.setdefault(columns, []).append(slot)
    return [*slots.values()]


def slots_can_be_alike(layout: ActionLayout) -> bool:
    """Whether one network chooses for all slots, by what is observed of their things alone."""
    if not layout.has_features or layout.has_choice_features:
        return False
    things = things_of(layout)
    known = {
        tuple(layout.slot_features[i] for i in slots) for slots in things if layout.slot_features
    }
    return len(things) > 1 and len(set(map(len, things))) == 1 and len(known) <= 1


class AlikeSlots(nn.Module):
    """Tells which slots another one is alike.

    Args:
        layout: of which `slots_can_be_alike` is true.
    """

    columns: torch.Tensor  # (A, f)
    order: torch.Tensor  # (N,): the slots of the first thing, of the second, and so on

    def __init__(self, layout: ActionLayout) -> None:
        super().__init__()
        things = things_of(layout)
        columns = torch.tensor([layout.slot_columns[slots[0]] for slots in things])
        self.register_buffer("columns", columns, persistent=False)
        order = torch.tensor([slot for slots in things for slot in slots])
        self.register_buffer("order", order, persistent=False)
        self.n_each = len(things[0])

    def pairs(self, x: torch.Tensor) -> torch.Tensor:
        """Returns which things are observed alike, bool `(B, A, A)`, from observations `(B, D)`."""
        seen = x[:, self.columns]  # (B, A, f)
        is_alike = (seen[:, :, None] == seen[:, None]).all(-1)
        others = ~torch.eye(len(self.columns), dtype=torch.bool, device=x.device)
        return is_alike & others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns which slots are of things that another one is alike, bool `(B, N)`."""
        of_things = self.pairs(x).any(2).repeat_interleave(self.n_each, dim=1)
        return torch.zeros_like(of_things).index_copy(1, self.order, of_things)

    def sticks_together(self, buffer: DeviceReplayBuffer) -> bool:
        """Whether things that are alike and choose alike stay so in a log, and return less."""
        index = followed_steps(buffer)
        some_alike, again = [], []
        for part in index.split(COMPARED_AT_ONCE):
            before, after = (
                self.pairs(buffer.observations_at(buffer.observation_index[steps]))
                for steps in (part, buffer.stored.following[part].long())
            )
            chosen = buffer.actions[part][:, self.order].unflatten(1, (-1, self.n_each))
            choose_alike = before & (chosen[:, :, None] == chosen[:, None]).all(-1)
            some_alike.append(before.flatten(1).any(1))
            again.append(after[choose_alike])
        if len(index) == 0:
            return False
        has_some, stay = torch.cat(some_alike), torch.cat(again).double()
        is_frequent = float(has_some.double().mean()) >= LEAST_SHARE
        lasts = len(stay) > 0 and float(stay.mean()) >= LEAST_AGAIN
        return is_frequent and lasts and return_less(buffer.rewards[index], has_some)
