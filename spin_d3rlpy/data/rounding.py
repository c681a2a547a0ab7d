"""What float32 and outliers take from features, found before training sees them.

Datasets hold states as float32, of 24 significant bits. Seconds since 1970 as float32 are multiples
of 128.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import shown

_MOST_NUMBERS = 2**23  # of states that are kept for the check: 64 MB
# Fractions collide by chance where there are millions of them; whole numbers do not.
_TOLERATED_LOSS = 0.1
_MOST_ROWS = 10_000  # of the sample in which outliers are looked for
_TAIL = 100  # one value in this many may lie outside, at each end
_LEAST_SPAN = 0.01  # of a feature's usual values, in units of its scale


@dataclasses.dataclass(frozen=True)
class LostValues:
    """A feature with fewer distinct values in float32 than in the data."""

    feature: int
    left: int  # distinct values in float32
    distinct: int  # distinct values in the data
    is_whole: bool  # whether all are whole numbers
    start: float  # its smallest value, without decimals
    shifted: int  # distinct values in float32 after subtracting that


class StateRounding:
    """Collects states as they are read, up to a bounded number of them, to compare with float32.

    They are the first rows, without gaps, because neighbors are the first to become equal.
    """

    def __init__(self) -> None:
        self._kept: list[NDArray[np.float64]] = []
        self._room = _MOST_NUMBERS

    def add(self, observations: NDArray[np.generic]) -> None:
        """Adds rows `(T, obs)` of any numeric type."""
        if self._room <= 0 or np.can_cast(observations.dtype, np.float32):
            return
        rows = observations[: max(1, self._room // max(1, observations.shape[1]))]
        self._kept.append(rows.astype(np.float64))
        self._room -= rows.size

    def lost(self) -> list[LostValues]:
        """Returns the features that lose distinct values."""
        if not self._kept:
            return []
        states = np.concatenate(self._kept)
        losses = (_lost_values(i, states[:, i]) for i in range(states.shape[1]))
        return [loss for loss in losses if loss is not None]

    def warn(self, source: str) -> None:
        """Warns (UserWarning) of features that lose values; `source` is what the message names."""
        if lost := self.lost():
            listed = ", ".join(f"{loss.feature} ({_share(loss)})" for loss in lost)
            warnings.warn(
                f"Features of {source} lose distinct values in float32: {listed}. Subtract a "
                "number near them in float64, in the data and in the environment's states alike, "
                "and save the dataset again.",
                UserWarning,
                stacklevel=2,
            )


class ColumnRounding:
    """What float32 and outliers take from a table's columns, looked at one by one.

    Attributes:
        shifts: numbers to subtract from columns, by name, without which values become equal.
    """

    def __init__(self) -> None:
        self.shifts: dict[str | int, float] = {}
        self._lost: list[tuple[str | int, LostValues, float | None]] = []
        self._ruled: list[str] = []

    def look(
        self,
        name: str | int,
        values: NDArray[np.float64],
        fits: bool,
        given: bool,
        subtracted: float,
    ) -> float:
        """Returns what to subtract from a column so that float32 keeps more of its values, or 0.

        Args:
            name: of the column.
            values: its numbers, `(rows,)`, none missing.
            fits: whether float32 holds all numbers of their type.
            given: whether it was said what to subtract; then that holds.
            subtracted: what has been subtracted already.
        """
        loss = None if fits else _lost_values(0, values)
        shift = 0.0
        if loss is not None and given:
            self._lost.append((name, loss, subtracted + loss.start))
        elif loss is not None:
            if loss.shifted > loss.left:
                shift = self.shifts[name] = loss.start
                values = values - shift
                loss = dataclasses.replace(loss, left=loss.shifted)
            if _is_loss(loss.distinct, loss.left, loss.is_whole):
                self._lost.append((name, loss, None))
        self._look_for_outliers(name, values)
        return shift

    def _look_for_outliers(self, name: str | int, values: NDArray[np.float64]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            scale = values.std(keepdims=True)
        if ruled_by_outliers(values[:, None], scale):
            self._ruled.append(f"{shown(name)} ({_largest(values)})")

    def warn(self) -> None:
        """Warns (UserWarning) of columns that float32 or an outlier makes useless."""
        if self._lost:
            columns = ", ".join(f"{shown(name)} ({_share(loss)})" for name, loss, _ in self._lost)
            warnings.warn(
                f"Columns lose distinct values in float32: {columns}. {_advice(self._lost)}",
                UserWarning,
                stacklevel=3,
            )
        if self._ruled:
            warnings.warn(
                f"A few values rule the scale of columns: {', '.join(self._ruled)}. Standardized, "
                "all other values are nearly equal. Repair or clip those values.",
                UserWarning,
                stacklevel=3,
            )


def ruled_by_outliers(states: NDArray[np.floating], scale: NDArray[np.floating]) -> list[int]:
    """Returns the features whose usual values differ by less than 1 % of their scale.

    Args:
        states: `(rows, obs)`; at most 10,000 evenly spaced ones are looked at.
        scale: standard deviation or range of all rows, `(obs,)`.
    """
    sample = np.sort(states[:: -(-len(states) // _MOST_ROWS)], axis=0)
    tail = min(max(1, len(sample) // _TAIL), (len(sample) - 1) // 2)
    span = sample[len(sample) - 1 - tail].astype(np.float64) - sample[tail]
    # Features that are constant but for a few rows are not dead: what is rare is what they tell.
    is_ruled = (span > 0.0) & (span < _LEAST_SPAN * scale.astype(np.float64))
    return np.flatnonzero(is_ruled).tolist()


def _lost_values(feature: int, values: NDArray[np.float64]) -> LostValues | None:
    if (_rounded(values) == values).all():
        return None
    # Neither rounding nor a subtraction changes the order, so that one sort is enough.
    values = np.sort(values)
    distinct, left = _distinct(values), _distinct(_rounded(values))
    is_whole = bool((values == np.rint(values)).all())
    if not _is_loss(distinct, left, is_whole):
        return None
    start = float(np.floor(values[0]))
    shifted = _distinct(_rounded(values - start))
    return LostValues(feature, left, distinct, is_whole, start, shifted)


def _is_loss(distinct: int, left: int, is_whole: bool) -> bool:
    return distinct - left > (0.0 if is_whole else _TOLERATED_LOSS) * distinct


def _distinct(ordered: NDArray[np.floating]) -> int:
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what becomes infinite is refused later
        return values.astype(np.float32)


def _share(loss: LostValues) -> str:
    return f"{loss.left:,} of {loss.distinct:,} are left"


def _largest(values: NDArray[np.float64]) -> str:
    return f"{values[np.abs(values - np.median(values)).argmax()]:g} is farthest out"


def _advice(lost: Sequence[tuple[str | int, LostValues, float | None]]) -> str:
    starts = {
        name: start
        for name, loss, start in lost
        if start is not None and loss.shifted == loss.distinct
    }
    parts = []
    if starts:
        numbers = ", ".join(f"{shown(name)}: {number:.17g}" for name, number in starts.items())
        parts.append(f"Pass subtract={{{numbers}}}, or leave it out.")
    if len(starts) < len(lost):
        parts.append("Rescale the others or split them in two, such as days and seconds.")
    return " ".join(parts)
