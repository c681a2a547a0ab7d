"""Spaces of actions of any nesting as rows of numbers, each of which has a name."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from spin_envs.errors import InvalidActionError

Path: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = NDArray[np.float64]

MAX_NUMBERS = 100_000  # of an action
_LARGEST = 2**53  # of whole numbers that float64 holds exactly


@dataclasses.dataclass(frozen=True)
class Part:
    """A space within a space that is not made of others.

    Attributes:
        path: keys and positions that lead to it.
        space: a `Discrete`, `MultiBinary`, `MultiDiscrete` or `Box`.
    """

    path: Path
    space: Space[Any]

    @property
    def where(self) -> str:
        """How Python reaches it, such as `action["arm"][1]`."""
        return place(self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its numbers; `()` for one."""
        return tuple(self.space.shape or ())

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def names(self) -> list[str]:
        """A name of each number: the path's and the array's positions, as in `arm/1`."""
        return [
            "/".join(map(str, (*self.path, *index))) or "action" for index in np.ndindex(self.shape)
        ]

    @property
    def places(self) -> list[str]:
        """How Python reaches each number, such as `action["arm"][1]`."""
        return [place((*self.path, *index)) for index in np.ndindex(self.shape)]

    @property
    def is_binned(self) -> bool:
        """Whether its numbers need bins."""
        return isinstance(self.space, Box)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first choice's number in each slot, if it needs no bins."""
        start = np.asarray(getattr(self.space, "start", 0), np.int64)
        return np.broadcast_to(start, self.shape).ravel()

    @property
    def nvec(self) -> NDArray[np.int64]:
        """The number of choices in each slot, if it needs no bins."""
        space = self.space
        sizes: Any = 2
        if isinstance(space, Discrete | MultiDiscrete):
            sizes = space.n if isinstance(space, Discrete) else space.nvec
        return np.broadcast_to(np.asarray(sizes, np.int64), self.shape).ravel()

    def check(self) -> None:
        """Raises ValueError if float64 does not hold its whole numbers."""
        if self.is_binned or not self.size:
            return
        if np.max(np.abs(self.starts) + self.nvec) > _LARGEST:
            raise ValueError(
                f"Expected {self.where} to have numbers up to 2**53, got {self.space}."
            )

    def rows(self, values: object, n: int) -> Rows:
        """Returns `n` values of it as numbers `(n, size)`.

        Raises:
            InvalidActionError: they have another shape, or are no numbers.
        """
        try:
            array = np.asarray(values)
        except ValueError:  # of several lengths
            array = np.empty(0, object)
        # Wrappers of one number in an array are as common as the number.
        is_shaped = array.shape == (n, *self.shape) or (
            not self.shape and array.shape == (n, 1) and isinstance(self.space, Discrete)
        )
        if not is_shaped or array.dtype.kind not in "biuf":
            got = np.shape(array)[1:] if array.dtype != object else repr(values)[:100]
            raise InvalidActionError(
                f"Expected {self.where} to be numbers of shape {self.shape}, as {self.space} has "
                f"them, got {got}."
            )
        return array.reshape(n, self.size).astype(np.float64)

    def value(self, numbers: Rows) -> Any:
        """Returns numbers `(size,)` as a value of the space."""
        if isinstance(self.space, Discrete):
            return int(numbers[0])
        return numbers.reshape(self.shape).astype(self.space.dtype)


def place(path: Path, whole: str = "action") -> str:
    """Returns how Python reaches a part of an action, or other whole: `action["arm"][1]`."""
    keys = (f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in path)
    return whole + "".join(keys)


def parts_of(space: Space[Any], path: Path = ()) -> Iterator[Part]:
    """Yields the parts of a space, in its own order.

    Raises:
        ValueError: a part is none of those that become slots.
    """
    if isinstance(space, Dict | Tuple):
        inside = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, inner in inside:
            yield from parts_of(inner, (*path, key))
        return
    if not isinstance(space, Discrete | MultiBinary | MultiDiscrete | Box):
        raise ValueError(
            f"Expected {place(path)} to be a Discrete, MultiBinary, MultiDiscrete or Box space, or "
            f"a Dict or Tuple of such, got {space}. Leave it out by a wrapper that chooses it."
        )
    yield Part(path, space)


class ActionNumbers:
    """What actions of a space are made of: N numbers, in order, with names.

    Args:
        space: `Discrete`, `MultiBinary`, `MultiDiscrete`, `Box`, or a `Dict` or `Tuple` of them or
            of further ones.

    Attributes:
        space: the space.
        parts: its parts, in order.
        names: of the numbers: paths of keys and positions, such as `arm/1`.
        places: how Python reaches the numbers, such as `action["arm"][1]`.

    Raises:
        ValueError: it has another part, none, or two numbers of the same name.
    """

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.parts: list[Part] = []
        total = 0
        for part in parts_of(space):
            total += part.size
            if total > MAX_NUMBERS:  # before anything is made of so many
                break
            part.check()
            self.parts.append(part)
        if not 1 <= total <= MAX_NUMBERS:
            raise ValueError(
                f"Expected an action of 1 to {MAX_NUMBERS:,} numbers, got "
                f"{'none' if not total else 'more'} in {space!r:.200}."
            )
        self.names = [name for part in self.parts for name in part.names]
        self.places = [where for part in self.parts for where in part.places]
        if len(set(self.names)) < total:
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(
                f"Two numbers of the action would have the name {twice!r}. Give the entries of "
                f"{space} keys without a '/'."
            )
        ends = np.cumsum([0, *(part.size for part in self.parts)]).tolist()
        self.slices = [slice(*edge) for edge in itertools.pairwise(ends)]

    def of_actions(self, actions: Sequence[Any]) -> Rows:
        """Returns T actions as numbers `(T, N)`; raises InvalidActionError."""
        n = len(actions)
        return self._joined([[_at(a, part.path) for a in actions] for part in self.parts], n)

    def of_batch(self, batch: Any, n: int) -> Rows:
        """Returns T actions, stacked in each part as Minari has them, as numbers `(T, N)`."""
        return self._joined([_at(batch, part.path) for part in self.parts], n)

    def _joined(self, columns: Sequence[Any], n: int) -> Rows:
        rows = [part.rows(c, n) for part, c in zip(self.parts, columns, strict=True)]
        return np.concatenate(rows, axis=1)

    def action(self, numbers: Rows) -> Any:
        """Returns numbers `(N,)` as an action of the space."""
        values = iter(
            [part.value(numbers[at]) for part, at in zip(self.parts, self.slices, strict=True)]
        )
        return _built(self.space, values)


def _at(action: Any, path: Path) -> Any:
    """Returns a part of an action."""
    value = action
    for depth, key in enumerate(path):
        is_there = key in value if isinstance(value, Mapping) else hasattr(value, "__getitem__")
        try:
            value = value[key] if is_there else None
        except (IndexError, KeyError, TypeError):
            is_there = False
        if not is_there:
            raise InvalidActionError(
                f"Expected an action with {place(path[: depth + 1])}, got {action!r:.200}."
            )
    return value


def _built(space: Space[Any], values: Iterator[Any]) -> Any:
    """Returns the next values as an action of a space."""
    if isinstance(space, Dict):
        return {key: _built(inner, values) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_built(inner, values) for inner in space.spaces)
    return next(values)
