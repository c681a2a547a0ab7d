"""The parts of d3rlpy's replay buffer interface that training does not use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    DatasetInfo,
    EpisodeBase,
    PartialTrajectory,
    ReplayBufferBase,
    Signature,
    TrajectoryMiniBatch,
    Transition,
)
from d3rlpy.dataset.io import dump

from spin_d3rlpy.data.views import EpisodeViews, TransitionIndex


class EpisodeInterface(ReplayBufferBase):
    """Episodes, signatures and single samples of a buffer of tensors.

    Attributes are those of `DeviceReplayBuffer`.
    """

    nvec: list[int]
    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    terminals: torch.Tensor
    episode_starts: torch.Tensor
    _episodes: EpisodeViews | None

    @abstractmethod
    def sample_index(self, batch_size: int) -> torch.Tensor:
        """Draws numbers of transitions `(B,)`."""

    @property
    def episodes(self) -> Sequence[EpisodeBase]:
        """Episodes in d3rlpy's form, created on demand.

        They lack an episode's last next observation, as everywhere in d3rlpy, so stock evaluators
        miss the last transition of truncated episodes.
        """
        if self._episodes is None:
            tensors = (self.observations, self.actions, self.rewards, self.terminals)
            self._episodes = EpisodeViews(
                *(tensor.cpu().numpy() for tensor in (*tensors, self.episode_starts))
            )
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

    @property
    def trajectory_slicer(self) -> BasicTrajectorySlicer:
        """d3rlpy's stock slicer, for use with `episodes`."""
        return BasicTrajectorySlicer()

    @property
    def buffer(self) -> TransitionIndex:
        """Transitions as d3rlpy indexes them."""
        return TransitionIndex(self.episodes, self.episode_starts.cpu().numpy())

    def sample_transition(self) -> Transition:
        """Draws one transition as NumPy arrays."""
        batch = self.sample_transition_batch(1)
        observations: Any = batch.observations
        next_observations: Any = batch.next_observations
        reward = batch.rewards[0].cpu().numpy()
        return Transition(
            observation=observations[0].cpu().numpy(),
            action=batch.actions[0].cpu().numpy(),
            reward=reward,
            next_observation=next_observations[0].cpu().numpy(),
            next_action=batch.next_actions[0].cpu().numpy(),
            terminal=float(batch.terminals),
            interval=1,
            rewards_to_go=reward[None],
        )

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Draws a trajectory of `length` steps, padded before its episode's start."""
        episode, step = self.buffer[int(self.sample_index(1))]
        return self.trajectory_slicer(episode, step, length)

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Draws trajectories of `length` steps."""
        return TrajectoryMiniBatch.from_partial_trajectories(
            [self.sample_trajectory(length) for _ in range(batch_size)]
        )

    def dump(self, f: BinaryIO) -> None:
        """Writes `episodes` in d3rlpy's format."""
        dump(self.episodes, f)

    def _refuse_to_grow(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError: offline data does not grow."""
        raise NotImplementedError(
            "A DeviceReplayBuffer holds offline data and does not grow. Collect into a d3rlpy "
            "ReplayBuffer and convert it with DeviceReplayBuffer.from_replay_buffer."
        )

    append = append_episode = clip_episode = _refuse_to_grow

    @classmethod
    def load(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError: make a `ReplayBuffer` and use `from_replay_buffer`."""
        raise NotImplementedError(
            "d3rlpy's episodes do not contain nvec. Make a d3rlpy ReplayBuffer and convert it with "
            "DeviceReplayBuffer.from_replay_buffer(buffer, nvec)."
        )

    from_episode_generator = load
