"""Exploration in `fit_online` and `collect`; d3rlpy's explorers draw one choice for all slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from d3rlpy.algos.qlearning.explorers import LinearDecayEpsilonGreedy
from d3rlpy.types import NDArray, Observation


class MultiDiscreteEpsilonGreedy(LinearDecayEpsilonGreedy):
    """Replaces each slot by a uniformly random choice with probability epsilon.

    Epsilon falls linearly from `start_epsilon` to `end_epsilon` over `duration` environment steps,
    then stays. Uses NumPy's global random state, as d3rlpy's explorers do.

    Raises:
        ValueError: a probability outside [0, 1] or a duration below 1.
    """

    def __init__(
        self, start_epsilon: float = 1.0, end_epsilon: float = 0.1, duration: int = 1_000_000
    ) -> None:
        if not (0.0 <= start_epsilon <= 1.0 and 0.0 <= end_epsilon <= 1.0) or duration < 1:
            raise ValueError(
                "Expected probabilities in [0, 1] and a duration of at least 1, got "
                f"start_epsilon={start_epsilon}, end_epsilon={end_epsilon}, duration={duration}."
            )
        super().__init__(start_epsilon, end_epsilon, duration)

    def sample(self, algo: Any, x: Observation, step: int) -> NDArray:
        """Returns actions `(B, N)` for observations `(B, obs)` after `step` environment steps."""
        greedy: NDArray = algo.predict(x)
        explore = np.random.random(greedy.shape) < self.compute_epsilon(step)  # noqa: NPY002
        choices = np.random.randint(algo.config.nvec, size=greedy.shape)  # noqa: NPY002
        return np.where(explore, choices, greedy)
