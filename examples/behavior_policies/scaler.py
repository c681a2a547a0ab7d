"""The observation scaler of online training."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from d3rlpy.preprocessing import StandardObservationScaler, register_observation_scaler
from numpy.typing import NDArray


@dataclasses.dataclass()
class ClippedStandardObservationScaler(StandardObservationScaler):
    """Standardization with the result clipped to `[-clip, clip]`.

    What online training uses: early estimates of the moments may be far off, and clipping
    keeps a feature that has hardly moved yet from dominating.

    Args:
        mean: mean of each feature.
        std: standard deviation of each feature.
        eps: added to `std`.
        clip: largest magnitude of a scaled feature, in standard deviations.
    """

    clip: float = 10.0

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """Scales observations `(..., obs)`."""
        return super().transform(x).clamp(-self.clip, self.clip)

    def transform_numpy(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scales observations `(..., obs)`."""
        scaled: NDArray[np.float32] = np.clip(super().transform_numpy(x), -self.clip, self.clip)
        return scaled

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_clipped_standard"


register_observation_scaler(ClippedStandardObservationScaler)
