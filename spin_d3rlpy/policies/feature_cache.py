"""Slot features of a whole dataset, computed once when they no longer change."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import MiniBatch
from spin_d3rlpy.data.episodes import mapped_array
from spin_d3rlpy.fast.precision import Precision, autocast
from spin_d3rlpy.policies.base import SlotFeatures
from spin_d3rlpy.training.progress import progress_bar

ROWS_AT_ONCE = 4096
# Share of the free memory that the cache may take before it goes to the next slower place.
LARGEST_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class FeatureMiniBatch(MiniBatch):
    """A mini-batch with the policy's features of its observations."""

    cache: torch.Tensor = dataclasses.field(kw_only=True)  # (n, N, D) of all observations

    @property
    def features(self) -> torch.Tensor:
        """Features of the observations, `(B, N, D)`."""
        return self._pick(self.rows)

    @property
    def next_features(self) -> torch.Tensor:
        """Features of the next observations, `(B, N, D)`."""
        return self._pick(self.next_rows)

    def _pick(self, rows: torch.Tensor) -> torch.Tensor:
        return self.cache.index_select(0, rows.to(self.cache.device)).to(self.device)


def policy_input(batch: TorchMiniBatch) -> Any:
    """Returns the policy's input for a batch's observations."""
    return batch.features if isinstance(batch, FeatureMiniBatch) else batch.observations


def next_policy_input(batch: TorchMiniBatch) -> Any:
    """Returns the policy's input for a batch's next observations."""
    return batch.next_features if isinstance(batch, FeatureMiniBatch) else batch.next_observations


class CachedFeatures:
    """A dataset with a policy's features of its observations, as a source of batches.

    Features `(sum(T + 1), N, D)` are on the buffer's device or in host memory.
    """

    def __init__(self, buffer: DeviceReplayBuffer, features: torch.Tensor) -> None:
        self.buffer = buffer
        self.features = features

    @property
    def is_on_one_device(self) -> bool:
        """Whether observations and features are where everything else is."""
        return self.buffer.is_on_one_device and self.features.device == self.buffer.device

    def sample_transition_batch(self, batch_size: int) -> FeatureMiniBatch:
        """Draws transitions as the dataset does."""
        return self._with_features(self.buffer.sample_transition_batch(batch_size))

    def with_horizon(self, gamma: float | None) -> CachedFeatures:
        """See `DeviceReplayBuffer.with_horizon`."""
        buffer = self.buffer.with_horizon(gamma)
        return self if buffer is self.buffer else CachedFeatures(buffer, self.features)

    def _with_features(self, batch: MiniBatch) -> FeatureMiniBatch:
        fields = vars(batch)
        if isinstance(batch.imitation, MiniBatch):
            fields = fields | {"imitation": self._with_features(batch.imitation)}
        return FeatureMiniBatch(**fields, cache=self.features)


def compute_features(
    network: SlotFeatures,
    observations: torch.Tensor,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    precision: Precision = "float32",
    show_progress: bool = True,
) -> torch.Tensor:
    """Returns features `(n, N, D)` of every observation in bfloat16, without dropout.

    They stay on the device if they take less than half of its free memory, else in host memory
    (pinned for a GPU), else in an unnamed memory-mapped file in the temporary folder. Observations
    `(n, obs)` may be in host memory; `transform`, an observation scaler, is applied to them. An
    OSError says that neither has room.
    """
    device = next(network.parameters()).device
    features = _allocate((len(observations), *network.shape), device)
    was_training = network.training
    network.eval()
    with torch.no_grad(), autocast(device, precision):
        starts = range(0, len(observations), ROWS_AT_ONCE)
        for start in progress_bar("Caching features", "chunk", show_progress, iterable=starts):
            rows = observations[start : start + ROWS_AT_ONCE].to(device)
            features[start : start + ROWS_AT_ONCE] = network(
                rows if transform is None else transform(rows)
            )
    network.train(was_training)
    return features


def _allocate(shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    size = 2 * shape[0] * shape[1] * shape[2]
    if device.type == "cuda" and size < LARGEST_SHARE * torch.cuda.mem_get_info(device)[0]:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)
    if size < LARGEST_SHARE * _available_host_bytes():
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=device.type == "cuda")
    try:
        mapped = mapped_array(shape, np.int16, tempfile.gettempdir())
    except OSError as error:
        raise OSError(
            f"There is no room for cached features in memory, nor in a file: {error.strerror}. Set "
            "TMPDIR to a folder with room, or cache_features=False."
        ) from error
    return torch.from_numpy(mapped).view(torch.bfloat16)


def _available_host_bytes() -> int:
    """Memory available without swapping, page cache included where known."""
    try:
        with open("/proc/meminfo") as f:
            fields = dict(line.split(":") for line in f)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
