"""Observations scaled by a dataset's statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray


class StandardizeObservation(
    gymnasium.ObservationWrapper[NDArray[np.float32], Any, NDArray[Any]], RecordConstructorArgs
):
    """Returns `(observation - mean) / scale` as float32.

    For policies trained on observations that were standardized with the dataset. The numbers are
    part of the environment's spec, so copies made from that scale the same.

    Args:
        env: an environment with flat observations.
        mean: of each feature, `(obs,)`.
        scale: of each feature, `(obs,)`, not zero.

    Raises:
        ValueError: there are not as many numbers as features, or a scale is zero.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        mean: Sequence[float] | NDArray[Any],
        scale: Sequence[float] | NDArray[Any],
    ) -> None:
        self._mean, self._scale = np.array(mean, np.float64), np.array(scale, np.float64)
        # As lists, because a spec is written as JSON.
        RecordConstructorArgs.__init__(self, mean=self._mean.tolist(), scale=self._scale.tolist())
        super().__init__(env)
        shape = env.observation_space.shape
        if self._mean.shape != shape or self._scale.shape != shape or not self._scale.all():
            raise ValueError(
                f"Expected one mean and one scale that is not zero per feature, observations have "
                f"shape {shape}, means {self._mean.shape} and scales {self._scale.shape}."
            )
        self.observation_space = Box(-np.inf, np.inf, shape, np.float32)

    def observation(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """Scales one observation `(obs,)`."""
        scaled: NDArray[np.float32] = ((observation - self._mean) / self._scale).astype(np.float32)
        return scaled
