"""Contiguous arrays as d3rlpy's episodes and transitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from d3rlpy.dataset import BufferProtocol, Episode, EpisodeBase
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeViews(Sequence[EpisodeBase]):
    """d3rlpy episodes over slices of shared arrays, created on demand.

    Args:
        observations: `(sum(T + 1), obs)`.
        actions: `(n, N)`.
        rewards: `(n,)`.
        terminals: `(n,)`.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.integer[Any]]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.float32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> EpisodeBase: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[EpisodeBase]: ...

    def __getitem__(self, index: int | slice) -> EpisodeBase | Sequence[EpisodeBase]:
        if isinstance(index, slice):
            return [self._episode(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} episodes, no episode {index}.")
        return self._episode(index % len(self))

    def _episode(self, i: int) -> EpisodeBase:
        start, end = self.starts[i], self.starts[i + 1]
        return Episode(
            # Each episode before this one has one observation more than it has transitions.
            observations=self.observations[start + i : end + i],
            actions=self.actions[start:end],
            rewards=self.rewards[start:end, None],
            terminated=bool(self.terminals[end - 1]),
        )


class TransitionIndex(BufferProtocol):
    """d3rlpy's buffer protocol over episodes that do not change."""

    def __init__(self, episodes: Sequence[EpisodeBase], starts: NDArray[np.int64]) -> None:
        self._episodes = episodes
        self._starts = starts

    @property
    def episodes(self) -> Sequence[EpisodeBase]:
        """The episodes."""
        return self._episodes

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> tuple[EpisodeBase, int]:
        i = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._episodes[i], index - int(self._starts[i])

    def append(self, episode: EpisodeBase, index: int) -> None:
        """Raises NotImplementedError: offline data does not grow."""
        raise NotImplementedError("Offline data does not grow.")
