"""Weighted means over logged episodes, with intervals, and when they can be trusted."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# With fewer episodes' worth of weight, an interval is not to be believed.
LEAST_EFFECTIVE_SIZE = 30.0
# A mean weight further from 1, in its own standard errors, is taken for an error of the
# probabilities. There is no absolute allowance: intervals cover chance only, and a bias of the
# weights beyond chance is as large as they are, however small it looks.
MOST_ERRORS = 2.0
_ROUNDING = 1e-6
_NUMBERS_AT_ONCE = 4_000_000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimated value of a policy.

    Attributes:
        estimator: its name.
        value: the estimate; NaN if no logged action is one of the policy's.
        low: lower end of the interval.
        high: upper end of the interval.
        level: how often such intervals should contain the true value, e.g. 0.9.
        effective_size: number of the policy's own episodes that would tell as much, by Kish's
            formula, at the worst step that has rewards.
        n_episodes: logged episodes.
        clipped: share of episodes with a weight that was clipped.
        mean_weight: mean weight of the step (or slot) where it is furthest from 1. It is 1, up to
            chance, if the probabilities of the logged actions are right.
        mean_weight_error: its standard error.
    """

    estimator: str
    value: float
    low: float
    high: float
    level: float
    effective_size: float
    n_episodes: int
    clipped: float = 0.0
    mean_weight: float = 1.0
    mean_weight_error: float = 0.0

    @property
    def is_answered(self) -> bool:
        """Whether the log has enough episodes like the policy's own, and fitting probabilities."""
        enough = self.effective_size >= LEAST_EFFECTIVE_SIZE and math.isfinite(self.value)
        return enough and self.is_calibrated

    @property
    def is_calibrated(self) -> bool:
        """Whether the mean weight can be 1: within 2 of its standard errors.

        Right probabilities fail this for about one log in twenty by chance, for more if there are
        several steps, of which the worst is looked at. Clipped weights may have any lower mean.
        """
        away = self.mean_weight - 1.0
        if self.clipped > 0.0 and away < 0.0:
            return True
        return abs(away) <= MOST_ERRORS * self.mean_weight_error + _ROUNDING

    def __str__(self) -> str:
        """A plain sentence: the estimate, or why there is none."""
        counted = (
            f"{self.n_episodes:,} logged episodes count as {self.effective_size:,.1f} of the "
            "evaluated policy's"
        )
        if self.effective_size < LEAST_EFFECTIVE_SIZE:
            return (
                f"The log cannot answer ({self.estimator}): its {counted}, fewer than "
                f"{LEAST_EFFECTIVE_SIZE:.0f}. Evaluate a policy closer to the log's (for example "
                "with soften=0.5), or collect more data."
                + (f" Do not use the number {self.value:.4g}." if math.isfinite(self.value) else "")
            )
        if not self.is_calibrated:
            # What the log never does has no weight in it, which lowers the mean.
            or_unlogged = (
                ", or the policy decides what the log never does" if self.mean_weight < 1.0 else ""
            )
            return (
                f"The log cannot answer ({self.estimator}): the mean weight is "
                f"{self.mean_weight:.3g} +- {self.mean_weight_error:.2g} and should be 1, so the "
                f"probabilities of the logged actions are probably wrong{or_unlogged}. Train the "
                "structure model longer or on more data, pass known probabilities, evaluate a "
                "policy closer to the log's, or use clip=. "
                f"Do not use the number {self.value:.4g}."
            )
        clipping = f" {self.clipped:.0%} of them have a clipped weight." if self.clipped else ""
        return (
            f"Estimated value {self.value:.4g}, {self.level:.0%} interval {self.low:.4g} to "
            f"{self.high:.4g} ({self.estimator}): {counted}.{clipping}"
        )

    def as_row(self) -> dict[str, Any]:
        """Returns the fields, and whether the log answers, for a table."""
        return {**dataclasses.asdict(self), "answered": self.is_answered}


@dataclasses.dataclass(frozen=True)
class WeightedGains:
    """Gains of steps, weighted to look as if the evaluated policy had acted.

    The estimate is the mean of `base` plus the sum over steps of the weighted mean of `gains`.
    Rows are episodes, columns their steps (or, of a slate, its slots). After an episode's end gains
    are 0, and the last weight is repeated: the episode still counts.
    """

    weights: Floats  # (episodes, T)
    gains: Floats  # (episodes, T), discounted
    base: Floats  # (episodes,)

    def value(self, self_normalized: bool) -> float:
        """Returns the estimate."""
        return float(self._values(np.ones((1, len(self.base))), self_normalized)[0])

    def bootstrap(self, self_normalized: bool, n: int, seed: int) -> Floats:
        """Returns estimates `(n,)` from episodes drawn with replacement."""
        episodes = len(self.base)
        rng = np.random.default_rng(seed)
        at_once = max(1, _NUMBERS_AT_ONCE // episodes)
        parts = []
        for start in range(0, n, at_once):
            rows = min(at_once, n - start)
            drawn = rng.integers(episodes, size=(rows, episodes))
            # Counting is faster than drawing the counts, which are multinomial.
            drawn += episodes * np.arange(rows)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=rows * episodes).reshape(rows, episodes)
            parts.append(self._values(counts.astype(np.float64), self_normalized))
        return np.concatenate(parts)

    def effective_size(self) -> float:
        """Returns the smallest effective number of episodes of any step with gains."""
        used = self._used()
        squares = np.square(used).sum(0)
        sizes = np.square(used.sum(0)) / np.where(squares > 0.0, squares, 1.0)
        return float(sizes.min())

    def mean_weight(self) -> tuple[float, float]:
        """Returns the mean weight of the step where it is furthest from 1, and its error."""
        means = self._used().mean(0)
        worst = int(np.abs(means - 1.0).argmax())
        spread = float(self._used()[:, worst].std())
        return float(means[worst]), spread / len(self.base) ** 0.5

    def _used(self) -> Floats:
        """Weights of the steps that have gains, or of all if none has."""
        has_gains = (self.gains != 0.0).any(0)
        return self.weights[:, has_gains] if has_gains.any() else self.weights

    def _values(self, counts: Floats, self_normalized: bool) -> Floats:
        """Returns estimates `(B,)` of episodes that count `(B, episodes)` times each."""
        total = counts.sum(1)
        base = counts @ self.base / total
        weighted = self.weights * self.gains
        if not self_normalized:
            return np.asarray(base + counts @ weighted.sum(1) / total)
        sums, norms = counts @ weighted, counts @ self.weights
        return np.asarray(base + (sums / np.where(norms > 0.0, norms, 1.0)).sum(1))


def summarize(
    name: str,
    data: WeightedGains,
    self_normalized: bool,
    level: float = 0.9,
    n_bootstrap: int = 1000,
    seed: int = 0,
    clipped: float = 0.0,
) -> Estimate:
    """Returns an estimate with a bootstrap percentile interval over episodes.

    Raises:
        ValueError: `level` is not between 0 and 1, or `n_bootstrap` is below 100.
    """
    if not 0.0 < level < 1.0 or n_bootstrap < 100:
        raise ValueError(
            "Expected level between 0 and 1 and n_bootstrap of at least 100, got "
            f"level={level} and n_bootstrap={n_bootstrap}."
        )
    size = data.effective_size()
    value, low, high = (math.nan,) * 3
    if size > 0.0:
        value = data.value(self_normalized)
        drawn = data.bootstrap(self_normalized, n_bootstrap, seed)
        tail = (1.0 - level) / 2.0
        low, high = (float(q) for q in np.quantile(drawn, [tail, 1.0 - tail]))
    mean, error = data.mean_weight()
    return Estimate(name, value, low, high, level, size, len(data.base), clipped, mean, error)
