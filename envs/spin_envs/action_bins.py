"""Bins of continuous actions: which choice a value becomes, and what a choice acts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from spin_envs.action_grid import MAX_BINS, ChoiceValues, check_integer

By: TypeAlias = Literal["equal", "quantiles", "grid"]
Floats: TypeAlias = NDArray[np.float64]
_ROUNDING = 1e-14  # of a dimension's width


@dataclasses.dataclass(frozen=True)
class Bins:
    """How the values of one dimension are divided; a number alone means that many equal bins.

    A choice acts the mean of the logged values in its bin; without a log, or where none is in the
    bin, the bin's center. A value outside of all bins belongs to the first or last.

    Args:
        count: number of bins, 2 to 1,001. A dimension of whole numbers has at most one for each.
        by: `"equal"`, bins of the same width between the space's bounds, and where there is none,
            the least and largest logged value; `"quantiles"`, as many logged values in each bin,
            where a value that would fill two or more has one of its own; `"grid"`, as many evenly
            spaced values, both bounds included, to the nearest of which a value is rounded.
        edges: instead of a count the ends of the bins, ascending, one more than there are bins.

    Raises:
        ValueError: bad numbers, both or neither of them, or an unknown `by`.
    """

    count: int = 0
    by: By = "equal"
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"Expected by= one of {get_args(By)}, got {self.by!r}.")
        if not len(self.edges):
            check_integer("bins", self.count, 2, MAX_BINS)
            return
        if self.count or self.by != "equal":
            raise ValueError("Expected edges= alone: they say how many bins there are, and where.")
        edges = np.asarray(self.edges, np.float64)
        is_ascending = bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all())
        if edges.ndim != 1 or not 3 <= len(edges) <= MAX_BINS + 1 or not is_ascending:
            raise ValueError(
                f"Expected edges of 2 to {MAX_BINS} bins, 3 or more ascending finite numbers, got "
                f"{self.edges!r:.100}."
            )
        object.__setattr__(self, "edges", tuple(edges.tolist()))

    @classmethod
    def of(cls, given: Any) -> Bins:
        """Returns what a number of bins, or their edges, stands for."""
        if isinstance(given, Bins):
            return given
        is_edges = isinstance(given, Iterable) and not isinstance(given, str)
        return cls(edges=tuple(given)) if is_edges else cls(given)

    def divide(
        self, low: float, high: float, is_whole: bool, log: Floats | None
    ) -> tuple[Floats, Floats]:
        """Divides a dimension.

        Args:
            low: its lower bound, may be infinite.
            high: its upper bound.
            is_whole: whether its values are whole numbers.
            log: logged values `(T,)`, if any.

        Returns:
            The edges between the bins, `(K - 1,)`, and what the choices act, `(K,)`.

        Raises:
            ValueError: it has no bounds, or quantiles are asked for, and there is no log; a bin
                holds no value of the dimension.
        """
        log = None if log is None or not len(log) else np.clip(log, low, high)
        first, last = self._ends(low, high, log)
        count = self.count
        if is_whole and not self.edges:
            count = min(count, int(last - first) + 1)
        if first == last:
            between, values = np.zeros(0), np.array([first])
        elif self.by == "grid":
            values = np.linspace(first, last, count)
            between = (values[1:] + values[:-1]) / 2
        else:
            if self.edges:
                between = np.array(self.edges[1:-1])
            elif self.by == "quantiles":
                assert log is not None  # `_ends` saw to it
                between = _quantile_edges(log, count)
            else:
                # Each whole number is the middle of as much as belongs to it.
                margin = 0.5 if is_whole else 0.0
                between = np.linspace(first - margin, last + margin, count + 1)[1:-1]
            values = _means(between, _centers(between, first, last, is_whole), log)
        if is_whole:
            values = np.rint(values)
        return between, np.clip(values, low, high)

    def _ends(self, low: float, high: float, log: Floats | None) -> tuple[float, float]:
        """The first bin's lower end, and the last one's upper end."""
        if self.edges:
            return self.edges[0], self.edges[-1]
        if log is None and (self.by == "quantiles" or not np.isfinite([low, high]).all()):
            raise ValueError(
                "Expected logged actions, log=, of which quantiles can be taken."
                if self.by == "quantiles"
                else f"Expected finite bounds, got {low:g} to {high:g}. Pass the bins' edges, or "
                "logged actions as log=, or bound the space, e.g. with "
                "gymnasium.wrappers.RescaleAction."
            )
        if log is not None and self.by == "quantiles":
            return float(log.min()), float(log.max())
        if log is not None:
            low = low if np.isfinite(low) else float(log.min())
            high = high if np.isfinite(high) else float(log.max())
        return low, high


def _quantile_edges(log: Floats, count: int) -> Floats:
    """Returns the edges between at most `count` bins with about as many logged values in each."""
    distinct = np.unique(log)
    first = np.arange(len(distinct))  # of the distinct values, the least of each bin
    if len(distinct) > count:
        ranks = -(-np.arange(count) * len(log) // count)
        quantiles, times = np.unique(np.sort(log)[ranks], return_counts=True)
        places = np.searchsorted(distinct, quantiles)
        # A value that is several quantiles, such as a stick at rest, is not mixed with those above.
        first = np.unique([*places, *(places[times > 1] + 1)])
    first = first[(first > 0) & (first < len(distinct))]
    return np.asarray((distinct[first] + distinct[first - 1]) / 2)


def _centers(between: Floats, first: float, last: float, is_whole: bool) -> Floats:
    """Returns each bin's center; of whole numbers one that is in it."""
    lower, upper = np.array([first, *between]), np.array([*between, last])
    if is_whole:  # an edge belongs to the bin above it, the last one to the last bin
        upper = np.append(np.ceil(between) - 1, np.floor(last))
        return np.asarray(np.floor((np.ceil(lower) + upper) / 2))
    centers = (lower + upper) / 2
    centers[np.abs(centers) < _ROUNDING * (last - first)] = 0.0  # what rounding made of it
    return np.asarray(centers)


def _means(between: Floats, values: Floats, log: Floats | None) -> Floats:
    """Returns the mean of each bin's logged values, and `values` of bins without any."""
    if log is not None:
        bins = np.searchsorted(between, log, side="right")
        counts = np.bincount(bins, minlength=len(values))
        means = np.bincount(bins, log, minlength=len(values)) / np.maximum(counts, 1)
        # Rounding must not take a mean out of its bin.
        least, most = np.full((2, len(values)), [[np.inf], [-np.inf]])
        np.minimum.at(least, bins, log)
        np.maximum.at(most, bins, log)
        values = np.where(counts > 0, np.clip(means, least, most), values)
    return np.asarray(values)


class ActionBins(ChoiceValues):
    """Bins of each of N dimensions.

    Args:
        edges: of each dimension those between its K bins, `(K - 1,)`, ascending.
        values: of each dimension what its K choices act, `(K,)`.
    """

    def __init__(self, edges: Sequence[Floats], values: Sequence[Floats]) -> None:
        super().__init__(values)
        self.edges, self.acted = list(edges), list(values)

    def choices(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Maps finite values `(..., N)` to the choices in whose bins they are."""
        choices = np.empty(values.shape, np.int64)
        for i, edges in enumerate(self.edges):
            choices[..., i] = np.searchsorted(edges, values[..., i], side="right")
        return choices
