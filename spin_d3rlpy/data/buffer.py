"""A replay buffer whose arrays are on the training device."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
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
from d3rlpy.logging import LOG
from minari import MinariDataset

from spin_d3rlpy.data.batches import MiniBatch
from spin_d3rlpy.data.episodes import StackedEpisodes, allocate_observations
from spin_d3rlpy.data.layouts import read_layout
from spin_d3rlpy.data.masks import Unpacking
from spin_d3rlpy.data.preparation import KEY, TablePreparation, read_preparation
from spin_d3rlpy.data.source_rows import RowValues, SourceRows
from spin_d3rlpy.data.sources import read_d3rlpy, read_minari
from spin_d3rlpy.data.weights import (
    TrajectoryWeights,
    completed_returns,
    persistence,
    returns_to_go,
)
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.nvec import as_choices, whole_numbers
from spin_envs import ActionLayout

_ROWS_AT_ONCE = 65_536


def _alike(episodes: int) -> str:
    return "there is only one episode" if episodes == 1 else f"all {episodes} are equally good"


class DeviceReplayBuffer(ReplayBufferBase):
    """Offline episodes as contiguous tensors on one device, sampled there.

    All T transitions of an episode are used, also the last one before a time limit, whose next
    observation is known (d3rlpy's stock transition picker drops it). Memory-mapped observations
    (`map_in`) stay in host memory and their file when the rest moves to a GPU.

    Args:
        data: checked episodes (see `from_minari` and `from_replay_buffer`).
        map_in: folder of the file with `data.observations`, if memory-mapped.

    Attributes:
        nvec: number of choices of each of the N sub-actions.
        observations: `(sum(T + 1), obs)` float32; an episode's rows follow each other.
        actions: `(n, N)` int8, int16 or int64.
        rewards: `(n,)` float32.
        terminals: `(n,)` float32, 1 where the task ended the episode.
        observation_index: `(n,)` row of each transition's observation; the next row is its next
            observation.
        episode_starts: `(episodes + 1,)` index of each episode's first transition, and n.
        layout: what the action's slots and choices are, if that is known.
        preparation: how a table's columns became features, if it was read from one.
        masks: `(sum(T + 1), bytes)` uint8: of the observations, see `masks_at`; None without.
        rules: that all actions keep, if they are a teacher's (`relabel`) that has rules.
        source: which rows of a table the transitions are; `rows_of` uses it.
    """

    layout: ActionLayout | None = None
    preparation: TablePreparation | None = None
    rules: Sequence[Callable[[torch.Tensor], torch.Tensor]] | None = None

    def __init__(self, data: StackedEpisodes, map_in: Path | None = None) -> None:
        self._map_in = map_in
        lengths = torch.tensor(data.lengths)
        n = len(data.rewards)
        self.nvec = list(data.nvec)
        self.observations = torch.from_numpy(data.observations)
        self.actions = torch.from_numpy(data.actions)
        self.rewards = torch.from_numpy(data.rewards)
        self.terminals = torch.from_numpy(data.terminals)
        self.masks = None if data.masks is None else torch.from_numpy(data.masks)
        self._unpacking = Unpacking(data.nvec)
        self.episode_starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        # In 32 bits from the start: small observations take no more than this does.
        episode_of = torch.repeat_interleave(torch.arange(len(lengths)).int(), lengths)
        self.observation_index = torch.arange(n, dtype=torch.int32).add_(episode_of)
        # The next step of the episode, or this one if it is the last.
        self._following = torch.arange(1, n + 1, dtype=torch.int32)
        self._following[self.episode_starts[1:] - 1] -= 1
        self._zero_and_one = torch.tensor([0.0, 1.0])
        self.source = data.source or SourceRows.of_whole(n)
        self._episodes: list[EpisodeBase] | None = None
        self._weights: torch.Tensor | None = None  # (episodes,) of a transition, not normalized
        self._shares: torch.Tensor | None = None  # (episodes,) cumulative, of all draws
        self._weighs_critics = False
        self._imitation_rows: int | None = None
        self._warned_of_equal_weights = False
        self._last = self.episode_starts[:0]  # (n,) last step of each one's episode, if wanted
        self._to_end: torch.Tensor | None = None  # (n,) discounted return to the episode's end

    @classmethod
    def from_minari(
        cls,
        dataset: MinariDataset,
        max_episodes: int | None = None,
        bins: int | Sequence[int] | None = None,
        map_in: Path | None = None,
    ) -> DeviceReplayBuffer:
        """Reads a Minari dataset with MultiDiscrete, MultiBinary, Discrete or `Box` actions.

        Args:
            dataset: an opened one.
            max_episodes: read only the first ones.
            bins: values per dimension of a `Box` action, rounded to the nearest.
            map_in: folder of an unnamed file that holds observations instead of memory; it
                disappears with the buffer.

        Raises:
            InvalidDatasetError: other spaces, actions out of range, NaN or infinite entries.
        """
        buffer = cls(read_minari(dataset, max_episodes, bins, map_in), map_in)
        buffer.layout = read_layout(dataset, buffer.observations.shape[1], buffer.nvec)
        buffer.preparation = read_preparation(
            dataset.storage.metadata.get(KEY), buffer.observations.shape[1], buffer.nvec
        )
        return buffer

    @classmethod
    def from_replay_buffer(
        cls, buffer: ReplayBufferBase, nvec: Sequence[int]
    ) -> DeviceReplayBuffer:
        """Reads a d3rlpy replay buffer with integer actions `(N,)`.

        The last transition of a truncated episode is dropped, because d3rlpy does not store its
        next observation.

        Raises:
            InvalidDatasetError: invalid actions, NaN or infinite entries, or a picker other than
                `BasicTransitionPicker`.
            NvecMismatchError: actions have another number of sub-actions than `nvec`.
        """
        return cls(read_d3rlpy(buffer, nvec))

    @property
    def device(self) -> torch.device:
        return self.rewards.device

    def to(self, device: str | torch.device) -> DeviceReplayBuffer:
        """Returns the buffer on `device`, a copy unless it is there already."""
        device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        if device == self.device:
            return self
        moved = copy.copy(self)
        for name, value in vars(self).items():
            stays = name == "observations" and self._map_in is not None
            if isinstance(value, torch.Tensor) and not stays:
                setattr(moved, name, value.to(device))
        moved._unpacking = self._unpacking.to(device)
        return moved

    @property
    def is_on_one_device(self) -> bool:
        return self.observations.device == self.device

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
        starts = self.episode_starts.tolist()
        steps = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in chosen]).to(self.device)
        # Episode i's T + 1 observations begin i rows after its first transition's number.
        rows = torch.cat([torch.arange(starts[i] + i, starts[i + 1] + i + 1) for i in chosen])
        observations = allocate_observations(len(rows), self.observations.shape[1], self._map_in)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            read = self.observations[rows[part].to(self.observations.device)]
            observations[part] = read.cpu().numpy()
        stacked = StackedEpisodes(
            observations,
            actions=self.actions[steps].cpu().numpy(),
            rewards=self.rewards[steps].cpu().numpy(),
            terminals=self.terminals[steps].cpu().numpy(),
            lengths=[starts[i + 1] - starts[i] for i in chosen],
            nvec=self.nvec,
            masks=None if self.masks is None else self.masks[rows.to(self.device)].cpu().numpy(),
        )
        selected = DeviceReplayBuffer(stacked, self._map_in).to(self.device)
        selected.source = self.source.select(steps.cpu().numpy())
        selected.layout = self.layout
        selected.preparation = self.preparation
        selected.rules = self.rules
        if self._weights is not None:
            selected._weigh(self._weights[torch.tensor(chosen, device=self.device)])
            selected._weighs_critics = self._weighs_critics
        return selected

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
        chunks = self.observations.split(_ROWS_AT_ONCE)  # views: no second copy in memory
        n = len(self.observations)
        mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / n
        squares = torch.stack([(chunk - mean).square().sum(0) for chunk in chunks]).sum(0)
        return mean, (squares / n).sqrt()

    def sample_transition_batch(  # type: ignore[override]
        self, batch_size: int
    ) -> MiniBatch:
        """Draws transitions with replacement, by torch's global random state.

        Returns:
            Unscaled observations `(B, obs)`, integer actions `(B, N)`, rewards, terminals and
            intervals `(B, 1)`. At an episode's end the next action is the action itself.
            `returns_to_go` is zero. `imitation` is the batch of `for_imitation`, if it differs.
        """
        batch = self.transitions(self.sample_index(batch_size, self._weighs_critics))
        rows = self._imitation_rows or batch_size
        if rows == batch_size and (self._weights is None or self._weighs_critics):
            return batch
        return dataclasses.replace(batch, imitation=self.transitions(self.sample_index(rows)))

    def transitions(self, index: torch.Tensor) -> MiniBatch:
        """Returns the transitions at indices `(B,)` as a batch."""
        rows = self.observation_index.index_select(0, index)
        both = torch.cat([index, self._following.index_select(0, index)])
        actions, next_actions = self.actions.index_select(0, both).long().chunk(2)
        zeros, ones = self._zero_and_one[:, None, None].expand(-1, len(index), 1).unbind()
        last, next_rows, rewards, intervals = index, rows + 1, self.rewards, ones
        if self._to_end is not None:
            last = self._last.index_select(0, index)
            next_rows = self.observation_index.index_select(0, last) + 1
            rewards, intervals = self._to_end, (last - index + 1)[:, None].to(rewards.dtype)
        rewards = rewards.index_select(0, index)[:, None]
        return MiniBatch(
            observations=self.observations_at(rows),
            actions=actions,
            rewards=rewards,
            next_observations=self.observations_at(next_rows),
            next_actions=next_actions,
            returns_to_go=zeros,
            terminals=self.terminals.index_select(0, last)[:, None],
            intervals=intervals,
            device=str(self.device),
            rows=rows,
            next_rows=next_rows,
            masks=self.masks_at(rows),
            next_masks=self.masks_at(next_rows),
        )

    def for_imitation(
        self, weights: TrajectoryWeights, rows: int | None = None
    ) -> DeviceReplayBuffer:
        """Returns the same episodes with an additional batch for imitation, drawn by weights.

        It has `rows` transitions; as many as the critics' batch if None. If no weights can be told
        from the returns, all episodes count alike and a UserWarning says so, once for a dataset.
        """
        chosen = copy.copy(self)
        chosen._imitation_rows = rows
        if weights.temperature is None:
            return chosen
        starts = self.episode_starts[:-1]
        first = self.observations_at(self.observation_index.index_select(0, starts))
        if weights.least_persistence > -1.0:
            measured = persistence(self._halves(), first)
            if measured < weights.least_persistence:  # not so if it cannot be told
                LOG.info(
                    "All trajectories count alike: their returns differ by luck",
                    persistence=round(measured, 2),
                )
                return chosen
        shares = weights.compute(self.returns(), first)
        if not shares.max() > shares.min() and not self._warned_of_equal_weights:
            self._warned_of_equal_weights = chosen._warned_of_equal_weights = True
            warnings.warn(
                f"Trajectories cannot be weighted: {_alike(len(shares))}. All count alike. "
                "trajectory_weights=None says the same without this warning.",
                UserWarning,
                stacklevel=2,
            )
        chosen._weigh(shares)
        chosen._weighs_critics = weights.critics
        return chosen

    def _halves(self) -> torch.Tensor:
        """Mean rewards of the first and the second half of each episode, `(episodes, 2)`."""
        starts, ends = self.episode_starts[:-1], self.episode_starts[1:]
        sums = torch.nn.functional.pad(self.rewards.double().cumsum(0), (1, 0))
        middle = (starts + ends) // 2
        first = (sums[middle] - sums[starts]) / (middle - starts).clamp(min=1)
        second = (sums[ends] - sums[middle]) / (ends - middle)
        return torch.stack([first, second], dim=1)

    def _weigh(self, weights: torch.Tensor) -> None:
        shares = (weights * self.episode_starts.diff()).cumsum(0)
        self._weights, self._shares = weights, shares / shares[-1]

    def returns(self) -> torch.Tensor:
        """Returns the sum of each episode's rewards, `(episodes,)`, in float64."""
        total = self.rewards.double().cumsum(0)[self.episode_starts[1:] - 1]
        return torch.cat([total[:1], total.diff()])

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
        starts, ends = self.episode_starts, self.episode_starts[1:] - 1
        cut = ends[~self.terminals[ends].bool()]
        return torch.stack(
            [
                completed_returns(rewards, starts, cut, gamma)
                if gamma < 1.0
                else returns_to_go(rewards, starts, gamma)
                for gamma in gammas
            ]
        )

    def with_actions(self, actions: torch.Tensor) -> DeviceReplayBuffer:
        """Returns the same episodes with other actions `(n, N)`, in the transitions' order.

        Raises:
            InvalidActionSpaceError: they are of another shape or action space.
        """
        whole = as_choices(actions.cpu(), tuple(self.actions.shape), "with_actions", self.nvec)
        actions = torch.from_numpy(whole)
        chosen = copy.copy(self)
        chosen.actions = actions.to(self.device, self.actions.dtype)
        chosen.rules = None  # it is not known whether these keep them
        chosen._episodes = None
        return chosen

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
        chosen = copy.copy(self)
        chosen.rewards = rewards.to(self.device, self.rewards.dtype)
        chosen._weights = chosen._shares = chosen._to_end = chosen._episodes = None
        return chosen

    def with_horizon(self, gamma: float | None) -> DeviceReplayBuffer:
        """Returns the same episodes with transitions that reach to the end of their episode.

        Such a transition has the discounted return to go as reward, the episode's last observation
        as next observation and the steps to it as interval; truncated episodes bootstrap from
        there. `gamma` None gives one-step transitions.
        """
        if (gamma is None) == (self._to_end is None):
            return self
        chosen = copy.copy(self)
        if gamma is None:
            chosen._to_end = None
            return chosen
        lengths = self.episode_starts.diff()
        chosen._last = torch.repeat_interleave(self.episode_starts[1:] - 1, lengths)
        chosen._to_end = returns_to_go(self.rewards, self.episode_starts, gamma)
        return chosen

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws observations `(B, obs)` and their actions `(B, N)` int64."""
        index = self.sample_index(batch_size)
        row = self.observation_index.index_select(0, index)
        return self.observations_at(row), self.actions.index_select(0, index).long()

    def observations_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns observations `(R, obs)` of rows `(R,)`, on the buffer's device."""
        source = self.observations
        return source.index_select(0, rows.to(source.device)).to(self.device)

    def masks_at(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns which choices may be made in observations' rows `(R,)`, `(R, N, K)` bool.

        None if the dataset has no masks. Entries past a slot's last choice are False.
        """
        if self.masks is None:
            return None
        return self._unpacking(self.masks.index_select(0, rows))

    def sample_index(self, batch_size: int, weighted: bool = True) -> torch.Tensor:
        """Draws transition indices `(B,)` with replacement, by trajectory weights if `weighted`."""
        if self._shares is None or not weighted:
            return torch.randint(self.transition_count, (batch_size,), device=self.device)
        u = torch.rand(batch_size, 2, dtype=torch.float64, device=self.device)
        episode = torch.searchsorted(self._shares, u[:, 0].contiguous(), right=True)
        start, end = self.episode_starts[episode], self.episode_starts[episode + 1]
        return start + (u[:, 1] * (end - start)).long()

    @property
    def transition_count(self) -> int:
        return len(self.rewards)

    def size(self) -> int:
        return len(self.episode_starts) - 1

    # The parts of d3rlpy's interface that training does not use.

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
