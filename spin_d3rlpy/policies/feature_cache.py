"""Slot features of a whole dataset, computed once when they no longer change."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import MiniBatch
from spin_d3rlpy.data.buffer.episodes import mapped_array
from spin_d3rlpy.data.buffer.storage import StatesOfRows
from spin_d3rlpy.fast.precision import Precision, autocast
from spin_d3rlpy.files.untrusted import available_memory
from spin_d3rlpy.policies.base import SlotFeatures
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.progress import progress_bar

ROWS_AT_ONCE = 4096
TRIAL_ROWS = 256  # of the first two pieces, whose time tells how long the whole dataset takes
# Share of a budget's remaining seconds that caching may take. Steps on observations make better use
# of the time if less than the other half would be left for steps on features.
LARGEST_TIME_SHARE = 0.5
# Share of the free memory that the cache may take before it goes to the next slower place.
LARGEST_SHARE = 0.5


class NotWorthwhileError(Exception):
    """Caching would take more of a budget's seconds than it gains."""


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
    observations: torch.Tensor | StatesOfRows,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    precision: Precision = "float32",
    show_progress: bool = True,
    budget: Budget | None = None,
) -> torch.Tensor:
    """Returns features `(n, N, D)` of every observation in bfloat16, without dropout.

    They stay on the device if they take less than half of its free memory, else in host memory
    (pinned for a GPU), else in an unnamed memory-mapped file in the temporary folder. Observations
    `(n, obs)` may be in host memory; `transform`, an observation scaler, is applied to them.

    Raises:
        OSError: neither memory nor the temporary folder has room.
        NotWorthwhileError: they take more than half of the seconds that a budget has left, as
            estimated from a few rows and checked after every piece.
    """
    device = next(network.parameters()).device
    limit = _TimeLimit(budget or Budget(), len(observations), device)
    features = _allocate((len(observations), *network.shape), device)
    was_training = network.training
    network.eval()
    pieces = list(_pieces(len(observations), limit.is_set))
    try:
        with torch.no_grad(), autocast(device, precision):
            for piece in progress_bar("Caching features", "chunk", show_progress, iterable=pieces):
                rows = observations[piece].to(device)
                features[piece] = network(rows if transform is None else transform(rows))
                limit.check(piece.stop)
    finally:
        network.train(was_training)
    return features


def _pieces(n_rows: int, with_trial: bool) -> Iterator[slice]:
    """Slices of all rows, with short ones first if their time is measured."""
    trial = range(0, min(n_rows, 2 * TRIAL_ROWS), TRIAL_ROWS) if with_trial else range(0)
    rest = range(len(trial) * TRIAL_ROWS, n_rows, ROWS_AT_ONCE)
    for start, stop in itertools.pairwise([*trial, *rest, n_rows]):
        yield slice(start, stop)


class _TimeLimit:
    """Compares the time that all rows would take with what a budget leaves for them."""

    def __init__(self, budget: Budget, n_rows: int, device: torch.device) -> None:
        self._clock, self._n_rows, self._device = budget.clock, n_rows, device
        self._seconds = LARGEST_TIME_SHARE * budget.left
        self.is_set = math.isfinite(self._seconds)
        self._began = self._clock() if self.is_set else 0.0
        self._first: tuple[int, float] | None = None  # rows and seconds of the first piece

    def check(self, done: int) -> None:
        """Raises NotWorthwhileError if the first `done` rows were too slow, or all will be."""
        if not self.is_set:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        spent = self._clock() - self._began
        if self._first is None:
            self._first = done, spent  # kernels and memory are made here: not typical
        rows, seconds = self._first
        rate = (spent - seconds) / (done - rows) if done > rows else 0.0
        expected = spent + rate * (self._n_rows - done)
        if expected > self._seconds:
            raise NotWorthwhileError(
                f"Caching features would take {expected:.1f} s, expected at most "
                f"{self._seconds:.1f} s: half of the seconds left. Give the run more seconds."
            )


def _allocate(shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    size = 2 * shape[0] * shape[1] * shape[2]
    if device.type == "cuda" and size < LARGEST_SHARE * torch.cuda.mem_get_info(device)[0]:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)
    if size < LARGEST_SHARE * available_memory():
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=device.type == "cuda")
    try:
        mapped = mapped_array(shape, np.int16, tempfile.gettempdir())
    except OSError as error:
        raise OSError(
            f"There is no room for cached features in memory, nor in a file: {error.strerror}. Set "
            "TMPDIR to a folder with room, or cache_features=False."
        ) from error
    return torch.from_numpy(mapped).view(torch.bfloat16)
