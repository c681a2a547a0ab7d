"""The grid that turns a MultiDiscrete action into a continuous one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from spin_envs.errors import InvalidActionError

MAX_BINS = 1001


def check_action(action: object, nvec: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns `action` as an integer array of shape `(N,)` if every choice is within `nvec`.

    Gymnasium's own spaces are not asked by `Env.step`, and indexing would accept -1 and bare
    scalars silently, so environments call this.

    Args:
        action: what the caller passed to `step`.
        nvec: number of choices of each sub-action, shape `(N,)`.

    Raises:
        InvalidActionError: wrong shape, not integers, or out of range.
    """
    try:
        array = np.asarray(action)
    except ValueError as error:  # a ragged list
        raise InvalidActionError(
            f"Expected an action of shape {nvec.shape}, one integer per sub-action, got {action!r}."
        ) from error
    if array.shape != nvec.shape:
        raise InvalidActionError(
            f"Expected an action of shape {nvec.shape}, one integer per sub-action, "
            f"got shape {array.shape}. A batch of actions goes through a vector environment."
        )
    if array.dtype.kind not in "iu":
        raise InvalidActionError(
            f"Expected integer choices, got dtype {array.dtype}. Pass bin indices "
            f"(0 .. nvec - 1), not continuous values."
        )
    outside = (array < 0) | (array >= nvec)
    if outside.any():
        slot = int(outside.argmax())
        raise InvalidActionError(
            f"Sub-action {slot} is {int(array[slot])}, expected 0 to {int(nvec[slot]) - 1}. "
            f"The whole action was {array.tolist()}."
        )
    return array.astype(np.int64, copy=False)


class ActionGrid:
    """Evenly spaced values for each dimension, both end points included.

    Args:
        low: lowest value of each dimension, shape `(N,)`.
        high: highest value of each dimension, shape `(N,)`.
        bins: number of values, one for all dimensions or one per dimension (2 to 1,001).

    Raises:
        ValueError: `bins` is not an integer in range, or there are not N of them.
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
            if not isinstance(b, int | np.integer) or not 2 <= b <= MAX_BINS:
                raise ValueError(f"Expected bins to be integers from 2 to {MAX_BINS}, got {b!r}.")
        self.nvec = np.array(per_dimension, dtype=np.int64)
        # (N, K): row i holds the values of dimension i; what is past nvec[i] is never read.
        self._values = np.zeros((n, int(self.nvec.max(initial=0))))
        for i, b in enumerate(per_dimension):
            self._values[i, :b] = np.linspace(low[i], high[i], b)
        self._rows = np.arange(n)

    def to_continuous(self, action: object) -> NDArray[np.float64]:
        """Maps bin indices of shape `(N,)` to values of shape `(N,)`.

        Raises:
            InvalidActionError: see `check_action`.
        """
        values: NDArray[np.float64] = self._values[self._rows, check_action(action, self.nvec)]
        return values
