"""`nvec`, the number of choices of each slot, and the layout that follows from it.

A slot is one of the choices that an action consists of; the SPIN paper says sub-action.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray
from torch import nn

from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError

# Some slots of each row, `(B, C)`; the same ones of all rows; None for all.
Slots: TypeAlias = torch.Tensor | slice | None


def whole_numbers(values: object) -> list[int]:
    """Returns whole numbers of a sequence as integers; a TypeError for anything else.

    2.0 is a whole number. 2.5 is none, which `int` would cut, nor are True and "2".
    """
    numbers = []
    for value in np.asarray(values, object).tolist():
        is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        if not is_number or value != value or value in (np.inf, -np.inf) or value != int(value):
            raise TypeError(f"Expected whole numbers, got {value!r:.100}.")
        numbers.append(int(value))
    return numbers


def check_nvec(nvec: Sequence[int]) -> list[int]:
    """Returns `nvec` as a list of integers.

    Raises:
        InvalidActionSpaceError: it is empty, holds anything but whole numbers, or a slot has
            no choice.
    """
    try:
        values = whole_numbers(nvec)
    except TypeError as error:
        raise InvalidActionSpaceError(f"nvec is wrong: {error}") from error
    if not values or min(values) < 1:
        raise InvalidActionSpaceError(
            f"Expected nvec to hold one positive number of choices per slot, got {values}."
        )
    return values


def as_choices(
    actions: object, shape: tuple[int, ...], whose: str, nvec: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Returns actions as int64 of a shape, without cutting or repeating anything.

    Args:
        actions: an array or nested lists.
        shape: `(B, N)`, or `(B,)` where only the number of rows is known.
        whose: for the error, e.g. `"the evaluated function"`.
        nvec: number of choices of each slot, if it is known.

    Raises:
        InvalidActionSpaceError: they are of another shape, no whole numbers or no choices.
    """
    rows = shape if len(shape) == 2 else (*shape, "N")
    expected = f"Expected integer actions of shape ({rows[0]}, {rows[1]}) from {whose}"
    if nvec is not None:
        expected += f", with choices below {list(nvec)}"
    try:
        array = np.asarray(actions)
    except ValueError as error:
        raise InvalidActionSpaceError(f"{expected}; got rows of different lengths.") from error
    is_shaped = array.ndim == 2 and array.shape[: len(shape)] == shape
    is_whole = array.dtype.kind in "biu" or (
        array.dtype.kind == "f" and bool(np.all(array == np.floor(array)))
    )
    within = is_shaped and is_whole
    if within and nvec is not None:
        within = not np.any((array < 0) | (array >= np.asarray(nvec)))
    if not within:
        raise InvalidActionSpaceError(
            f"{expected}; got {array.dtype} of shape {array.shape}: {array!r:.200}."
        )
    return array.astype(np.int64)


def nvec_from_space(space: gymnasium.Space[object]) -> list[int]:
    """Returns the number of choices of each slot of a Gymnasium action space.

    `MultiBinary` has two choices each, `Discrete` is a single slot. For spaces that do not
    start at 0 see `choices_of` and `actions_of`.

    Raises:
        InvalidActionSpaceError: the space is of another kind.
    """
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        return check_nvec(space.nvec.tolist())
    if isinstance(space, MultiBinary) and len(space.shape) == 1:
        return [2] * space.shape[0]
    if isinstance(space, Discrete):
        return [int(space.n)]
    wrapper = "DiscretizeAction, or FlattenAction" if isinstance(space, Box) else "FlattenAction"
    advice = f"Wrap the environment in spin_envs.{wrapper}."
    raise InvalidActionSpaceError(
        f"Expected a one-dimensional MultiDiscrete action space, got {space}. {advice}"
    )


def choices_of(space: gymnasium.Space[Any], actions: object) -> NDArray[Any]:
    """Returns a space's actions as choices that count from 0."""
    choices: NDArray[Any] = _signed(actions) - _signed(getattr(space, "start", 0))
    return choices


def actions_of(space: gymnasium.Space[Any], choices: NDArray[Any]) -> NDArray[Any]:
    """Returns choices `(..., N)` as actions of a space: `(...)` if it is `Discrete`."""
    actions: NDArray[Any] = _signed(choices) + _signed(getattr(space, "start", 0))
    return actions[..., 0] if isinstance(space, Discrete) else actions


def _signed(numbers: object) -> NDArray[Any]:
    """Unsigned integers as signed ones: NumPy gives numbers with a point for a mix of both."""
    array = np.asarray(numbers)
    return array.astype(np.int64) if array.dtype.kind == "u" else array


def require_same_nvec(
    expected: Sequence[int], compared: Sequence[int], whose: str, other: str
) -> None:
    """Raises NvecMismatchError naming both parties if they differ."""
    if list(expected) != list(compared):
        raise NvecMismatchError(
            f"{whose} has nvec={list(expected)}, but {other} has nvec={list(compared)}. "
            "Both must describe the same action space."
        )


def replace_slot(actions: torch.Tensor, slot: int, choices: torch.Tensor) -> torch.Tensor:
    """Returns actions `(B, N)` with other choices `(B,)` of a slot.

    Not in place, so that exports can follow.
    """
    return torch.cat([actions[:, :slot], choices[:, None], actions[:, slot + 1 :]], dim=1)


class SlotLayout(nn.Module):
    """Position of each slot's choices in a flat vector of `S = sum(nvec)` numbers.

    Nothing else knows where a slot begins, so equal and ragged `nvec` share all other code.
    """

    offsets: torch.Tensor  # (N,)
    padded_index: torch.Tensor  # (N, K): positions in the flat vector; padding repeats the last
    padding: torch.Tensor  # (N, K): True past a slot's last choice
    slot_of: torch.Tensor  # (S,)

    def __init__(self, nvec: Sequence[int]) -> None:
        super().__init__()
        self.nvec = check_nvec(nvec)
        self.n_slots, self.total, self.max_choices = len(self.nvec), sum(self.nvec), max(self.nvec)
        self.is_uniform = len(set(self.nvec)) == 1
        # Real numbers also where networks are made on the meta device, for their shapes.
        with torch.device("cpu"):
            sizes, choice = torch.tensor(self.nvec)[:, None], torch.arange(self.max_choices)
            offsets = sizes.cumsum(0) - sizes
            buffers = {
                "offsets": offsets[:, 0],
                "padded_index": offsets + torch.minimum(choice, sizes - 1),
                "padding": choice >= sizes,
                "slot_of": torch.arange(self.n_slots).repeat_interleave(sizes[:, 0]),
            }
        for name, buffer in buffers.items():  # they follow from nvec, so they are not saved
            self.register_buffer(name, buffer, persistent=False)

    def split(self, flat: torch.Tensor, fill: float = -torch.inf) -> torch.Tensor:
        """Reshapes `(..., S)` to `(..., N, K)`, padded with `fill` past a slot's last choice."""
        if self.is_uniform:
            uniform: torch.Tensor = flat.unflatten(-1, (self.n_slots, self.max_choices))
            return uniform
        return flat[..., self.padded_index].masked_fill(self.padding, fill)

    def positions(self, actions: torch.Tensor) -> torch.Tensor:
        """Positions of chosen entries in the flat vector: integer `(..., N)` to `(..., N)`."""
        return actions.long() + self.offsets

    def gather(self, flat: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Picks the chosen entries: `(..., S)` and integer `(..., N)` give `(..., N)`."""
        chosen: torch.Tensor = flat.gather(-1, self.positions(actions))
        return chosen

    def argmax(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns each slot's best choice: `(..., S)` gives integer `(..., N)`."""
        return self.split(flat).argmax(-1)


def rows_of(table: torch.Tensor, slots: Slots) -> torch.Tensor:
    """Returns rows of some slots, `(B, C, ...)`, of a table `(B, N, ...)`."""
    if slots is None:
        return table
    if isinstance(slots, slice):
        return table[:, slots]
    first = torch.arange(table.shape[0], device=table.device)[:, None] * table.shape[1]
    return table.flatten(0, 1)[first + slots]  # copies whole rows, which `gather` does not


def gumbel_noise(like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Standard Gumbel noise of a tensor's shape: `argmax(logits + noise)` draws from softmax."""
    return -torch.log(torch.empty_like(like).exponential_(generator=generator))
