"""`nvec`, the number of choices of each sub-action: where it comes from and what it lays out.

Network outputs are flat, `S = sum(nvec)` numbers a row, slot after slot; `SlotLayout` is the only
place that knows where each slot begins, so equal and ragged `nvec` take the same path elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from torch import nn

from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError


def check_nvec(nvec: Sequence[int]) -> list[int]:
    """Returns `nvec` as a list of Python integers.

    Raises:
        InvalidActionSpaceError: it is empty or a sub-action has no choice.
    """
    values = [int(m) for m in nvec]
    if not values or min(values) < 1:
        raise InvalidActionSpaceError(
            f"Expected nvec to hold one positive number of choices per sub-action, got {values}."
        )
    return values


def nvec_from_space(space: gymnasium.Space[object]) -> list[int]:
    """Returns the number of choices of each sub-action of a Gymnasium action space.

    `MultiBinary` reads as choices of two, `Discrete` as a single sub-action.

    Raises:
        InvalidActionSpaceError: the space is none of these or does not start at 0.
    """
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        if np.any(space.start != 0):
            raise InvalidActionSpaceError(
                f"Expected sub-actions that start at 0, got start={space.start.tolist()}. "
                "Shift the actions and use MultiDiscrete(nvec)."
            )
        return check_nvec(space.nvec.tolist())
    if isinstance(space, gymnasium.spaces.MultiBinary) and len(space.shape) == 1:
        return [2] * space.shape[0]
    if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
        return [int(space.n)]
    raise InvalidActionSpaceError(
        f"Expected a one-dimensional MultiDiscrete action space, got {space}. Discretize "
        "continuous actions first, for example with the environments of spin_envs."
    )


def require_same_nvec(
    expected: Sequence[int], found: Sequence[int], whose: str, other: str
) -> None:
    """Raises NvecMismatchError naming both parties unless the two agree."""
    if list(expected) != list(found):
        raise NvecMismatchError(
            f"{whose} has nvec={list(expected)}, but {other} has nvec={list(found)}. "
            "Both must describe the same action space."
        )


class SlotLayout(nn.Module):
    """Where each slot's choices lie in a flat vector of `S = sum(nvec)` numbers.

    Args:
        nvec: number of choices of each sub-action (N of them).
    """

    offsets: torch.Tensor  # (N,)
    padded_index: torch.Tensor  # (N, K): positions in the flat vector; padding repeats the last
    padding: torch.Tensor  # (N, K): True past a slot's last choice
    slot_of: torch.Tensor  # (S,)

    def __init__(self, nvec: Sequence[int]) -> None:
        super().__init__()
        # Real numbers also where networks are made on the meta device, for their shapes.
        with torch.device("cpu"):
            self._lay_out(torch.tensor(check_nvec(nvec)))

    def _lay_out(self, sizes: torch.Tensor) -> None:
        self.nvec = sizes.tolist()
        self.n_slots = len(self.nvec)
        self.total = int(sizes.sum())
        self.max_choices = int(sizes.max())
        self.is_uniform = len(set(self.nvec)) == 1
        offsets = sizes.cumsum(0) - sizes
        choice = torch.arange(self.max_choices)
        # They follow from nvec, so they are not saved with the weights.
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer(
            "padded_index",
            offsets[:, None] + torch.minimum(choice[None], sizes[:, None] - 1),
            persistent=False,
        )
        self.register_buffer("padding", choice[None] >= sizes[:, None], persistent=False)
        self.register_buffer(
            "slot_of", torch.repeat_interleave(torch.arange(self.n_slots), sizes), persistent=False
        )

    def split(self, flat: torch.Tensor, fill: float = -torch.inf) -> torch.Tensor:
        """Reshapes `(..., S)` to `(..., N, K)`; past a slot's last choice stands `fill`."""
        if self.is_uniform:
            uniform: torch.Tensor = flat.unflatten(-1, (self.n_slots, self.max_choices))
            return uniform
        return flat[..., self.padded_index].masked_fill(self.padding, fill)

    def positions(self, actions: torch.Tensor) -> torch.Tensor:
        """Where chosen entries stand in the flat vector: integer `(..., N)` give `(..., N)`."""
        return actions.long() + self.offsets

    def gather(self, flat: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Picks the chosen entries: `(..., S)` and integer `(..., N)` give `(..., N)`."""
        chosen: torch.Tensor = flat.gather(-1, self.positions(actions))
        return chosen

    def argmax(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns each slot's best choice: `(..., S)` gives integer `(..., N)`."""
        return self.split(flat).argmax(-1)
