"""The parts of d3rlpy's replay buffer interface that training does not use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import BinaryIO, NoReturn

import numpy as np
import torch
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import (
    BasicTransitionPicker,
    DatasetInfo,
    Episode,
    EpisodeBase,
    ReplayBufferBase,
    Signature,
)
from d3rlpy.dataset.io import dump


class EpisodeInterface(ReplayBufferBase):
    """Episodes and signatures of a buffer of tensors, whose attributes `DeviceReplayBuffer` has."""

    nvec: list[int]
    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    terminals: torch.Tensor
    episode_starts: torch.Tensor
    _episodes: list[EpisodeBase] | None

    @property
    def episodes(self) -> Sequence[EpisodeBase]:
        """Episodes in d3rlpy's form, created on demand.

        They lack an episode's last next observation, as everywhere in d3rlpy, so stock evaluators
        miss the last transition of truncated episodes.
        """
        if self._episodes is None:
            tensors = (self.observations, self.actions, self.rewards, self.terminals)
            observations, actions, rewards, terminals = (t.cpu().numpy() for t in tensors)
            starts = self.episode_starts.tolist()
            self._episodes = [
                Episode(
                    # Earlier episodes have one observation more than transitions each.
                    observations=observations[start + i : end + i],
                    actions=actions[start:end],
                    rewards=rewards[start:end, None],
                    terminated=bool(terminals[end - 1]),
                )
                for i, (start, end) in enumerate(itertools.pairwise(starts))
            ]
        return self._episodes

    @property
    def dataset_info(self) -> DatasetInfo:
        """Signatures; `action_size` is the largest number of choices."""
        dtype = np.dtype(str(self.actions.dtype).removeprefix("torch."))
        return DatasetInfo(
            observation_signature=Signature([np.dtype(np.float32)], [self.observations.shape[1:]]),
            action_signature=Signature([dtype], [self.actions.shape[1:]]),
            reward_signature=Signature([np.dtype(np.float32)], [(1,)]),
            action_space=ActionSpace.DISCRETE,
            action_size=max(self.nvec),
        )

    @property
    def transition_picker(self) -> BasicTransitionPicker:
        """d3rlpy's stock picker, for use with `episodes`."""
        return BasicTransitionPicker()

    def dump(self, f: BinaryIO) -> None:
        """Writes `episodes` in d3rlpy's format."""
        dump(self.episodes, f)

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError: d3rlpy's own buffer does this with `episodes`."""
        raise NotImplementedError(
            "A DeviceReplayBuffer holds offline data: it does not grow and draws batches of "
            "transitions only. For the rest make d3rlpy's buffer, ReplayBuffer(InfiniteBuffer(), "
            "episodes=dataset.episodes); DeviceReplayBuffer.from_replay_buffer converts it back."
        )

    append = append_episode = clip_episode = _refuse
    sample_transition = sample_trajectory = sample_trajectory_batch = _refuse
    buffer = trajectory_slicer = property(_refuse)

    @classmethod
    def load(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError: make a `ReplayBuffer` and use `from_replay_buffer`."""
        raise NotImplementedError(
            "d3rlpy's episodes do not contain nvec. Make a d3rlpy ReplayBuffer and convert it with "
            "DeviceReplayBuffer.from_replay_buffer(buffer, nvec)."
        )

    from_episode_generator = load
