"""The grid that maps a MultiDiscrete action to a continuous one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.errors import InvalidActionError

MAX_BINS = 1001


def check_action(
    action: object, nvec: NDArray[np.int64], num_envs: int | None = None
) -> NDArray[np.int64]:
    """Returns an action `(N,)` or batch `(num_envs, N)` as integers; raises InvalidActionError.

    `Env.step` does not check actions, and indexing would silently accept -1 and scalars.
    """
    shape = nvec.shape if num_envs is None else (num_envs, *nvec.shape)
    try:
        array = np.asarray(action)
    except ValueError as error:  # a ragged list
        raise InvalidActionError(
            f"Expected an action of shape {shape}, one integer per slot, got {action!r}."
        ) from error
    if array.shape != shape:
        hint = " Pass a batch of actions to a vector environment." if num_envs is None else ""
        raise InvalidActionError(
            f"Expected an action of shape {shape}, one integer per slot, "
            f"got shape {array.shape}.{hint}"
        )
    if array.dtype.kind not in "iu":
        raise InvalidActionError(
            f"Expected integer choices, got dtype {array.dtype}. Pass bin indices "
            f"(0 .. nvec - 1), not continuous values."
        )
    outside = (array < 0) | (array >= nvec)
    if outside.any():
        *row, slot = (int(i) for i in np.argwhere(outside)[0])
        where = f" of environment {row[0]}" if row else ""
        whole = array[tuple(row)]
        raise InvalidActionError(
            f"Slot {slot}{where} is {int(whole[slot])}, expected 0 to {int(nvec[slot]) - 1}. "
            f"The whole action was {whole.tolist()}."
        )
    return array.astype(np.int64, copy=False)


def is_integer(value: object) -> bool:
    """Whether a value is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises `ValueError` unless `value` is an integer (not a bool) from `low` to `high`."""
    if not (is_integer(value) and low <= value <= high):  # type: ignore[operator]
        raise ValueError(f"Expected {name} to be an integer from {low} to {high}, got {value!r}.")


def bounds_of(space: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lower and upper bounds of each dimension, flat `(N,)`, infinite without any.

    The largest number of the space's type, or of float32, is no bound: ViZDoom's sticks have it.
    """
    low, high = (np.array(bound, np.float64).ravel() for bound in (space.low, space.high))
    if np.issubdtype(space.dtype, np.floating):
        most = min(float(np.finfo(kind).max) for kind in (space.dtype, np.float32))
        low, high = np.where(low <= -most, -np.inf, low), np.where(high >= most, np.inf, high)
    return low, high


class ChoiceValues:
    """What the choices of each of N dimensions stand for.

    Args:
        values: of each dimension its choices' values, `(K,)`.
    """

    def __init__(self, values: Sequence[NDArray[np.float64]]) -> None:
        self.nvec = np.array([len(v) for v in values], dtype=np.int64)
        # (N, K): row i holds the values of dimension i; what is past nvec[i] is never read.
        self._values = np.zeros((len(values), int(self.nvec.max(initial=0))))
        for i, v in enumerate(values):
            self._values[i, : len(v)] = v
        self._rows = np.arange(len(values))

    def to_continuous(self, action: object) -> NDArray[np.float64]:
        """Maps choices `(N,)` to values `(N,)`; raises as `check_action`."""
        return self.values(check_action(action, self.nvec))

    def values(self, checked: NDArray[np.int64]) -> NDArray[np.float64]:
        """Maps checked actions, `(N,)` or `(B, N)`, to values of the same shape."""
        values: NDArray[np.float64] = self._values[self._rows, checked]
        return values


class ActionGrid(ChoiceValues):
    """Evenly spaced values per dimension, from `low` to `high`, shape `(N,)`, ends included.

    Raises:
        ValueError: `bins` is not a number from 2 to 1,001 for all dimensions, or one for each.
    """

    def __init__(
        self, low: NDArray[np.float64], high: NDArray[np.float64], bins: int | Sequence[int]
    ) -> None:
        n = len(low)
        per_dimension = list(bins) if isinstance(bins, Iterable) else [bins] * n
        if len(per_dimension) != n:
            raise ValueError(
                f"Expected one number of bins or {n} of them (one per action dimension), "
                f"got {len(per_dimension)}: {per_dimension}."
            )
        for b in per_dimension:
            check_integer("bins", b, 2, MAX_BINS)
        super().__init__([np.linspace(low[i], high[i], b) for i, b in enumerate(per_dimension)])
        self._low = np.array(low, dtype=np.float64)
        self._spacing = (np.array(high, dtype=np.float64) - self._low) / (self.nvec - 1)

    def nearest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Maps finite values `(..., N)` to nearest bin indices, clipped to the grid's ends."""
        # A dimension whose ends coincide has equal bins; the first stands for all.
        spacing = np.where(self._spacing == 0.0, 1.0, self._spacing)
        index = np.rint((values - self._low) / spacing)
        return np.clip(index, 0, self.nvec - 1).astype(np.int64)
