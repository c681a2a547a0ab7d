"""Exploration in `fit_online` and `collect`; d3rlpy's explorers draw one choice for all slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from d3rlpy.algos.qlearning.explorers import LinearDecayEpsilonGreedy
from d3rlpy.types import NDArray, Observation


class MultiDiscreteEpsilonGreedy(LinearDecayEpsilonGreedy):
    """Replaces each sub-action by a uniformly random choice with probability epsilon.

    Epsilon falls linearly from `start_epsilon` to `end_epsilon` over `duration` environment steps,
    then stays. Uses NumPy's global random state, as d3rlpy's explorers do.
    """

    def sample(self, algo: Any, x: Observation, step: int) -> NDArray:
        """Returns actions `(B, N)` for observations `(B, obs)` after `step` environment steps."""
        greedy: NDArray = algo.predict(x)
        explore = np.random.random(greedy.shape) < self.compute_epsilon(step)  # noqa: NPY002
        choices = np.random.randint(algo.config.nvec, size=greedy.shape)  # noqa: NPY002
        return np.where(explore, choices, greedy)
