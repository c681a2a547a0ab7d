"""A replay buffer whose arrays are on the training device."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import (
    BasicTransitionPicker,
    DatasetInfo,
    EpisodeBase,
    ReplayBufferBase,
    Signature,
)
from d3rlpy.dataset.io import dump
from minari import MinariDataset

from spin_d3rlpy.data.buffer.batches import MiniBatch
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.data.buffer.named_rewards import NamedRewards, RewardFunction, Weights
from spin_d3rlpy.data.buffer.sampler import Sampler, episode_weights
from spin_d3rlpy.data.buffer.source_rows import RowValues, SourceRows
from spin_d3rlpy.data.buffer.storage import Horizon, StatesOfRows, StoredEpisodes
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.data.layouts import read_layout
from spin_d3rlpy.data.minari.info_rewards import RewardReader, RewardSource
from spin_d3rlpy.data.minari.sources import read_d3rlpy, read_minari
from spin_d3rlpy.data.tables.preparation import KEY, TablePreparation, read_preparation
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.histories import History
from spin_d3rlpy.nvec import as_choices, whole_numbers
from spin_envs import ActionLayout, FlatActions, ObservationLayout
from spin_envs.flat_actions import BinsOf


def _alike(episodes: int) -> str:
    return "there is only one episode" if episodes == 1 else f"all {episodes} are equally good"


class DeviceReplayBuffer(ReplayBufferBase):
    """Offline episodes as contiguous tensors on one device, sampled there.

    All T transitions of an episode are used, also the last one before a time limit, whose next
    observation is known (d3rlpy's stock transition picker drops it). Memory-mapped observations
    (`map_in`) stay in host memory and their file when the rest moves to a GPU.

    Episodes (`StoredEpisodes`) and how they are drawn (`Sampler`) never change; the methods that
    change something return another buffer of them.

    Args:
        data: checked episodes (see `from_minari` and `from_replay_buffer`).
        map_in: folder of the file with `data.observations`, if memory-mapped.

    Attributes:
        stored: the episodes.
        layout: what the action's slots and choices are, if that is known.
        preparation: how a table's columns became features, if it was read from one.
        flat_actions: how choices become what its environment takes, unless both are the same.
        rules: that all actions keep, if they are a teacher's (`relabel`) that has rules.
    """

    layout: ActionLayout | None = None
    preparation: TablePreparation | None = None
    flat_actions: FlatActions | None = None
    rules: Sequence[Callable[..., torch.Tensor]] | None = None

    def __init__(self, data: StackedEpisodes, map_in: Path | None = None) -> None:
        self.stored = StoredEpisodes.from_stacked(data, map_in)
        self._sampler = Sampler.of(self.stored)
        self._horizon: Horizon | None = None  # transitions are single steps
        self._warned_of_equal_weights = False

    def _with(
        self, stored: StoredEpisodes | None = None, sampler: Sampler | None = None
    ) -> DeviceReplayBuffer:
        """Returns a buffer of other episodes, drawn alike by default, or of these, drawn otherwise.

        Its transitions are single steps.
        """
        other = copy.copy(self)
        other.stored, other._horizon = stored or self.stored, None
        other._sampler = sampler or Sampler.of(other.stored)
        return other

    @classmethod
    def from_minari(
        cls,
        dataset: MinariDataset,
        max_episodes: int | None = None,
        bins: BinsOf | FlatActions | None = None,
        map_in: Path | None = None,
        rewards: Mapping[str, RewardSource] | None = None,
        weights: Weights | RewardFunction | None = None,
    ) -> DeviceReplayBuffer:
        """Reads a Minari dataset; its actions are of any space that `FlatActions` takes.

        Args:
            dataset: an opened one.
            max_episodes: read only the first ones.
            bins: of continuous actions, see `load_dataset`.
            map_in: folder of an unnamed file that holds observations instead of memory; it
                disappears with the buffer.
            rewards: several rewards of each step, see `load_dataset`.
            weights: of these rewards.

        Raises:
            ValueError: `rewards` and `weights` do not fit.
            InvalidDatasetError: other spaces, actions out of range, NaN or infinite entries.
        """
        reader = RewardReader.of(dataset, rewards, weights)
        stacked, actions = read_minari(dataset, max_episodes, bins, map_in, reader)
        buffer = cls(stacked, map_in)
        buffer.flat_actions = actions
        buffer.layout = read_layout(dataset, buffer.observations.shape[1], buffer.nvec)
        buffer.preparation = read_preparation(
            dataset.storage.metadata.get(KEY), buffer.observations.shape[1], buffer.nvec
        )
        return buffer

    @classmethod
    def from_replay_buffer(
        cls,
        buffer: ReplayBufferBase,
        nvec: Sequence[int],
        observation_layout: ObservationLayout | None = None,
    ) -> DeviceReplayBuffer:
        """Reads a d3rlpy replay buffer with integer actions `(N,)`.

        The last transition of a truncated episode is dropped, because d3rlpy does not store its
        next observation. Observations are rows of numbers, images of uint8, or tuples of both.

        Args:
            buffer: d3rlpy's.
            nvec: number of choices of each slot.
            observation_layout: where rows have images, as in data that an algorithm collected.

        Raises:
            InvalidDatasetError: invalid actions, NaN or infinite entries, or a picker other than
                `BasicTransitionPicker`.
            NvecMismatchError: actions have another number of slots than `nvec`.
        """
        return cls(read_d3rlpy(buffer, nvec, observation_layout))

    @property
    def nvec(self) -> list[int]:
        """Number of choices of each of the N slots."""
        return self.stored.nvec

    @property
    def observations(self) -> torch.Tensor:
        """`(sum(T + 1), obs)` float32; an episode's rows follow each other.

        Of observations with images it is the numbers alone; the pixels are `images`.
        Single ones, also with a history: `observations_at` returns what a policy sees.
        """
        return self.stored.observations

    @property
    def observation_size(self) -> int:
        """Length of what a policy sees: of an observation, or of a row of a history."""
        return self.stored.observation_size

    @property
    def images(self) -> torch.Tensor | None:
        """`(sum(T + 1), p)` uint8: pixels of the images in each observation; None without."""
        return self.stored.images

    @property
    def observation_layout(self) -> ObservationLayout | None:
        """Where the parts of an observation lie in a row; None without images."""
        return self.stored.observation_layout

    @property
    def states(self) -> StatesOfRows:
        """What a policy sees in each row of `observations`, by slices."""
        return StatesOfRows(self.stored)

    @property
    def history(self) -> History | None:
        """How rows of the last observations are made; None if a state is one observation."""
        return self.stored.history

    @property
    def actions(self) -> torch.Tensor:
        """`(n, N)` int8, int16 or int64."""
        return self.stored.actions

    @property
    def rewards(self) -> torch.Tensor:
        """`(n,)` float32."""
        return self.stored.rewards

    @property
    def terminals(self) -> torch.Tensor:
        """`(n,)` float32, 1 where the task ended the episode."""
        return self.stored.terminals

    @property
    def observation_index(self) -> torch.Tensor:
        """`(n,)` row of each transition's observation; the next row is its next observation."""
        return self.stored.observation_index

    @property
    def episode_starts(self) -> torch.Tensor:
        """`(episodes + 1,)` index of each episode's first transition, and n."""
        return self.stored.episode_starts

    @property
    def masks(self) -> torch.Tensor | None:
        """`(sum(T + 1), bytes)` uint8: of the observations, see `masks_at`; None without."""
        return self.stored.masks

    @property
    def source(self) -> SourceRows:
        """Which rows of a table the transitions are; `rows_of` uses it."""
        return self.stored.source

    @property
    def named_rewards(self) -> NamedRewards | None:
        """Several rewards of each transition, of which `rewards` are made; None if it has one."""
        return self.stored.named_rewards

    @property
    def device(self) -> torch.device:
        return self.stored.device

    @property
    def is_on_one_device(self) -> bool:
        return self.observations.device == self.device

    def to(self, device: str | torch.device) -> DeviceReplayBuffer:
        """Returns the buffer on `device`, a copy unless it is there already."""
        device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        if device == self.device:
            return self
        stored, sampler = self.stored.to(device), self._sampler
        weights = None if sampler.weights is None else sampler.weights.to(device)
        moved = self._with(
            stored, Sampler.of(stored, weights, sampler.weighs_critics, sampler.imitation_rows)
        )
        if self._horizon is not None:
            last, to_end = self._horizon.last.to(device), self._horizon.to_end.to(device)
            moved._horizon = Horizon(last, to_end)
        return moved

    def select(self, episodes: Sequence[int]) -> DeviceReplayBuffer:
        """Returns a copy with some of the episodes, on the same device.

        Args:
            episodes: their indices, in the order of the copy; or a bool mask of all episodes.

        Raises:
            ValueError: no index, one of an episode that does not exist or that is no whole number,
                or a mask of another length.
        """
        chosen = self._indices(episodes)
        if not chosen or not all(0 <= i < self.size() for i in chosen):
            raise ValueError(f"Expected episode indices from 0 to {self.size() - 1}, got {chosen}.")
        stored, weights = self.stored.select(chosen), self._sampler.weights
        if weights is None:
            return self._with(stored)
        weights = weights[torch.tensor(chosen, device=self.device)]
        return self._with(stored, Sampler.of(stored, weights, self._sampler.weighs_critics))

    def _indices(self, episodes: object) -> list[int]:
        """Returns indices that are given as such or as a mask."""
        try:
            array = np.asarray(episodes)
            if array.dtype != bool:
                return whole_numbers(episodes)
        except (TypeError, ValueError) as error:  # rows of different lengths, for NumPy
            raise ValueError(f"Expected indices of episodes, or a mask. {error}") from error
        if array.shape != (self.size(),):
            raise ValueError(
                f"Expected a mask of all {self.size()} episodes, got shape {array.shape}."
            )
        return [int(i) for i in array.nonzero()[0]]

    def split(self, share: float, seed: int = 0) -> tuple[DeviceReplayBuffer, DeviceReplayBuffer]:
        """Splits episodes at random into training and held-out episodes, each in order.

        At least one is held out, and one remains.

        Raises:
            ValueError: `share` (of those held out) is not between 0 and 1, or there is only one.
        """
        n = self.size()
        if not 0.0 < share < 1.0 or n < 2:
            raise ValueError(
                f"Expected a share between 0 and 1 and two episodes or more, got {share} and {n}."
            )
        held_out = min(n - 1, max(1, round(share * n)))
        order = np.random.default_rng(seed).permutation(n)
        return self.select(sorted(order[held_out:])), self.select(sorted(order[:held_out]))

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns mean and standard deviation of the observations, `(obs,)` each, in float64."""
        return self.stored.moments()

    def sample_transition_batch(  # type: ignore[override]
        self, batch_size: int
    ) -> MiniBatch:
        """Draws transitions with replacement, by torch's global random state.

        Returns:
            Unscaled observations `(B, obs)`, integer actions `(B, N)`, rewards, terminals and
            intervals `(B, 1)`. At an episode's end the next action is the action itself.
            `returns_to_go` is zero. `imitation` is the batch of `for_imitation`, if it differs.
        """
        index = self.sample_index(batch_size, self._sampler.weighs_critics)
        batch, rows = self.transitions(index), self._sampler.separate_imitation_rows(batch_size)
        if rows is None:
            return batch
        return dataclasses.replace(batch, imitation=self.transitions(self.sample_index(rows)))

    def transitions(self, index: torch.Tensor) -> MiniBatch:
        """Returns the transitions at indices `(B,)` as a batch."""
        return self.stored.transitions(index, self._horizon)

    def for_imitation(
        self, weights: TrajectoryWeights, rows: int | None = None
    ) -> DeviceReplayBuffer:
        """Returns the same episodes with an additional batch for imitation, drawn by weights.

        It has `rows` transitions; as many as the critics' batch if None. If no weights can be told
        from the returns, all episodes count alike and a UserWarning says so, once for a dataset.
        """
        of_episodes = None
        if weights.temperature is not None:
            of_episodes = episode_weights(self.stored, weights)
        if of_episodes is None:
            return self._with(sampler=Sampler.of(self.stored, imitation_rows=rows))
        if not of_episodes.max() > of_episodes.min() and not self._warned_of_equal_weights:
            self._warned_of_equal_weights = True
            warnings.warn(
                f"Trajectories cannot be weighted: {_alike(self.size())}. All count alike. "
                "trajectory_weights=None says the same without this warning.",
                UserWarning,
                stacklevel=2,
            )
        sampler = Sampler.of(self.stored, of_episodes, weights.critics, rows)
        return self._with(sampler=sampler)

    @property
    def is_weighted(self) -> bool:
        """Whether the policy's batches are drawn by trajectory weights (`for_imitation`)."""
        return self._sampler.weights is not None

    def returns(self) -> torch.Tensor:
        """Returns the sum of each episode's rewards, `(episodes,)`, in float64."""
        return self.stored.returns()

    def rows_of(self, values: object) -> RowValues:
        """Returns values of the table's rows as those of the transitions, in their order.

            known = dataset.rows_of(frame["propensity"])
            importance_sampling(dataset, policy, known)

        Args:
            values: one for each row that the dataset was read from, `(rows, ...)`. A dataset that
                no table was read into has the rows of its own transitions before `select`.

        Raises:
            InvalidDatasetError: more or fewer values than rows.
        """
        return self.source.align(values)

    def completed_returns(self, rewards: torch.Tensor, gammas: Sequence[float]) -> torch.Tensor:
        """Returns to go of rewards `(n,)` by G discounts, `(G, n)`, see `weights`.

        With a discount below 1 the mean return follows the end of an episode that was cut off.
        """
        return self.stored.completed_returns(rewards, gammas)

    def with_actions(self, actions: torch.Tensor) -> DeviceReplayBuffer:
        """Returns the same episodes with other actions `(n, N)`, in the transitions' order.

        Raises:
            InvalidActionSpaceError: they are of another shape or action space.
        """
        whole = as_choices(actions.cpu(), tuple(self.actions.shape), "with_actions", self.nvec)
        actions = torch.from_numpy(whole).to(self.device, self.actions.dtype)
        chosen = self._with(dataclasses.replace(self.stored, actions=actions), self._sampler)
        chosen._horizon = self._horizon
        chosen.rules = None  # it is not known whether these keep them
        return chosen

    def with_observations(self, observations: torch.Tensor) -> DeviceReplayBuffer:
        """Returns the same episodes, each trajectory drawn alike, with other observations.

        Args:
            observations: `(sum(T + 1), obs)` float32, in the order of `observations`; they may have
                another number of features. What was known of features is left out. Images stay as
                they are, next to as many numbers as before.

        Raises:
            InvalidDatasetError: they are of another number, or not finite.
        """
        rows, layout = len(self.observations), self.observation_layout
        if layout is not None and observations.shape[1:] != (layout.n_numbers,):
            raise InvalidDatasetError(
                f"Expected {layout.n_numbers} numbers next to the images of each observation, got "
                f"shape {tuple(observations.shape)}."
            )
        is_table = observations.ndim == 2 and len(observations) == rows
        if not is_table or not bool(observations.isfinite().all()):
            raise InvalidDatasetError(
                f"Expected {rows} finite observations, got shape {tuple(observations.shape)}."
            )
        observations = observations.to(self.observations.device, torch.float32)
        other = self._with(dataclasses.replace(self.stored, observations=observations))
        other.layout = other.preparation = None
        return other

    def with_history(self, length: int, actions: bool = False) -> DeviceReplayBuffer:
        """Returns the same episodes with rows of the last observations as states.

        Rows are made when they are asked for, of `observations_at`, in batches and in episodes;
        the data are not copied. What is in a row: `spin_d3rlpy.histories`.

        Args:
            length: observations of a row; 1 is no history.
            actions: whether the actions between them are in it.

        Raises:
            InvalidDatasetError: no episode has so many steps, or it has another history already.
            ValueError: `length` is less than 1, or actions without a history.
        """
        if length < 1 or (actions and length == 1):
            raise ValueError(
                "Expected a history of at least 1, and of at least 2 with actions, got "
                f"{length} and actions={actions}."
            )
        history = None if length == 1 else History(length, actions, tuple(self.nvec))
        if history == self.history:
            return self
        if self.history is not None:
            raise InvalidDatasetError(
                f"The dataset has a history already, of {self.history.length} observations "
                f"(with actions: {self.history.with_actions}). Expected the same, got {length} "
                f"(with actions: {actions})."
            )
        longest = int(self.episode_starts.diff().max())
        if length > longest:
            raise InvalidDatasetError(
                f"Expected a history of at most the longest episode's {longest} steps, got "
                f"{length}. Shorten the history, or collect longer episodes."
            )
        chosen = self._with(dataclasses.replace(self.stored, history=history), self._sampler)
        chosen._horizon = self._horizon
        return chosen

    def seen_by(self, policy: object) -> DeviceReplayBuffer:
        """Returns the same episodes as an algorithm sees them: with its config's history, if any.

        Of another policy, such as a function, they stay as they are.

        Raises:
            InvalidDatasetError: as of `with_history`.
        """
        config: Any = getattr(policy, "config", None)
        if not hasattr(config, "history"):
            return self
        return self.with_history(config.history, config.history_actions)

    def with_rewards(self, rewards: torch.Tensor) -> DeviceReplayBuffer:
        """Returns the same episodes, each trajectory drawn alike, with other rewards `(n,)`.

        Raises:
            InvalidDatasetError: they are of another shape, or not finite.
        """
        if rewards.shape != self.rewards.shape or not bool(rewards.isfinite().all()):
            raise InvalidDatasetError(
                f"Expected {len(self.rewards)} finite rewards, one for each transition, got shape "
                f"{tuple(rewards.shape)}."
            )
        rewards, named = rewards.to(self.device, self.rewards.dtype), self.named_rewards
        if named is not None:
            named = dataclasses.replace(named, weights=None)
        stored = dataclasses.replace(self.stored, rewards=rewards, named_rewards=named)
        return self._with(stored)

    def with_weights(self, weights: Weights) -> DeviceReplayBuffer:
        """Returns the same episodes, each trajectory drawn alike, by other weights of rewards.

            of_complaints = dataset.with_weights({"complaints": 1.0})

        Args:
            weights: by name of the dataset's rewards; those that are not named count 0.

        Raises:
            InvalidDatasetError: the dataset has one reward.
            ValueError: an unknown name, a weight that is no finite number, or all are 0.
        """
        if self.named_rewards is None:
            raise InvalidDatasetError(
                "Expected a dataset with several rewards, from_table(..., rewards={...}) or "
                "load_dataset(..., rewards={...}); this one has one."
            )
        named = self.named_rewards.weighed(weights)
        stored = dataclasses.replace(self.stored, rewards=named.total(), named_rewards=named)
        return self._with(stored)

    def with_horizon(self, gamma: float | None) -> DeviceReplayBuffer:
        """Returns the same episodes with transitions that reach to the end of their episode.

        Such a transition has the discounted return to go as reward, the episode's last observation
        as next observation and the steps to it as interval; truncated episodes bootstrap from
        there. `gamma` None gives one-step transitions.
        """
        if (gamma is None) == (self._horizon is None):
            return self
        chosen = self._with(sampler=self._sampler)
        chosen._horizon = None if gamma is None else self.stored.horizon(gamma)
        return chosen

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws observations `(B, obs)` and their actions `(B, N)` int64."""
        index = self.sample_index(batch_size)
        row = self.observation_index.index_select(0, index)
        return self.observations_at(row), self.actions.index_select(0, index).long()

    def observations_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns observations `(R, obs)` of rows `(R,)`, on the buffer's device.

        With a history they are rows of the last ones.
        """
        return self.stored.observations_at(rows)

    def masks_at(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns which choices may be made in observations' rows `(R,)`, `(R, N, K)` bool.

        None if the dataset has no masks. Entries past a slot's last choice are False.
        """
        return self.stored.masks_at(rows)

    def sample_index(self, batch_size: int, weighted: bool = True) -> torch.Tensor:
        """Draws transition indices `(B,)` with replacement, by trajectory weights if `weighted`."""
        return self._sampler.draw(batch_size, weighted)

    def spread_index(self, most: int) -> torch.Tensor:
        """Returns numbers of transitions that are spread evenly, `(B,)`, from first to last.

        Args:
            most: of all transitions at most so many.
        """
        last, n = self.transition_count - 1, min(most, self.transition_count)
        # In integers: float32 does not hold the numbers of more than 16 million transitions.
        return torch.arange(n, device=self.device) * last // max(n - 1, 1)

    @property
    def transition_count(self) -> int:
        return len(self.rewards)

    def size(self) -> int:
        return self.stored.n_episodes

    @property
    def is_sequential(self) -> bool:
        """Whether decisions follow each other, so that episodes are not single ones."""
        return self.transition_count > self.size()

    # The parts of d3rlpy's interface that training does not use.

    @property
    def episodes(self) -> Sequence[EpisodeBase]:
        """Episodes in d3rlpy's form, created on demand.

        They lack an episode's last next observation, as everywhere in d3rlpy, so stock evaluators
        miss the last transition of truncated episodes.
        """
        return self.stored.of_d3rlpy

    @property
    def dataset_info(self) -> DatasetInfo:
        dtype = np.dtype(str(self.actions.dtype).removeprefix("torch."))
        return DatasetInfo(
            observation_signature=Signature([np.dtype(np.float32)], [(self.observation_size,)]),
            action_signature=Signature([dtype], [self.actions.shape[1:]]),
            reward_signature=Signature([np.dtype(np.float32)], [(1,)]),
            action_space=ActionSpace.DISCRETE,
            action_size=max(self.nvec),
        )

    @property
    def transition_picker(self) -> BasicTransitionPicker:
        return BasicTransitionPicker()

    def dump(self, f: BinaryIO) -> None:
        dump(self.episodes, f)

    @staticmethod
    def _refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            "A DeviceReplayBuffer holds offline data: it does not grow and draws batches of "
            "transitions only. For the rest and for files, which lack nvec, make d3rlpy's buffer, "
            "ReplayBuffer(InfiniteBuffer(), episodes=dataset.episodes); "
            "DeviceReplayBuffer.from_replay_buffer(buffer, nvec) converts it back."
        )

    append = append_episode = clip_episode = load = from_episode_generator = _refuse
    sample_transition = sample_trajectory = sample_trajectory_batch = _refuse
    buffer = trajectory_slicer = property(_refuse)
