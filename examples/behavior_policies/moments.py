"""Running mean and variance."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler


class RunningMoments:
    """Mean and variance of a stream of rows (Chan et al.'s pairwise update)."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def update(self, rows: NDArray[np.float32]) -> None:
        """Adds rows `(B, size)`."""
        n = len(rows)
        mean = rows.mean(0, dtype=np.float64)
        delta = mean - self.mean
        total = self.count + n
        self.m2 += ((rows - mean) ** 2).sum(0) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviations, `(size,)`."""
        std: NDArray[np.float64] = np.sqrt(self.m2 / max(self.count, 1.0))
        return std

    def state(self) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Returns the state, for a checkpoint."""
        return self.count, torch.from_numpy(self.mean), torch.from_numpy(self.m2)

    def load(self, state: tuple[float, torch.Tensor, torch.Tensor]) -> None:
        """Inverse of `state`."""
        self.count, mean, m2 = state
        self.mean, self.m2 = mean.numpy().copy(), m2.numpy().copy()

    def scaler(self) -> ClippedStandardObservationScaler:
        """Returns the scaler for the moments so far."""
        return ClippedStandardObservationScaler(
            mean=self.mean.astype(np.float32), std=self.std.astype(np.float32)
        )
