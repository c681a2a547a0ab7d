"""Statistics of few runs: intervals, interquartile means, time to a target.

After Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS
2021: normalized scores of all runs, bootstrap intervals that resample seeds within each task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
RESAMPLES = 2_000


def interval(
    strata: Sequence[Values], statistic: Callable[[Values], float] = np.mean
) -> tuple[float, float]:
    """Returns a 95 % percentile bootstrap interval (low, high) of a statistic of all values."""
    rng = np.random.default_rng(0)
    drawn = [
        statistic(np.concatenate([rng.choice(values, len(values)) for values in strata]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def interquartile_mean(values: Values) -> float:
    """Mean of the middle half."""
    return float(stats.trim_mean(values, 0.25))
