"""Offline episodes as contiguous tensors on one device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from d3rlpy.dataset import Episode, EpisodeBase
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.batches import MiniBatch
from spin_d3rlpy.data.buffer.episodes import (
    StackedEpisodes,
    allocate_images,
    allocate_observations,
)
from spin_d3rlpy.data.buffer.masks import Unpacking
from spin_d3rlpy.data.buffer.named_rewards import NamedRewards
from spin_d3rlpy.data.buffer.source_rows import SourceRows
from spin_d3rlpy.data.buffer.weights import completed_returns, returns_to_go
from spin_d3rlpy.fast.read_ahead import read_ahead
from spin_d3rlpy.histories import History
from spin_envs import ObservationLayout

_ROWS_AT_ONCE = 65_536


@dataclasses.dataclass(frozen=True, eq=False)
class Horizon:
    """Transitions that reach to the end of their episode, see `StoredEpisodes.horizon`."""

    last: torch.Tensor  # (n,) last step of each one's episode
    to_end: torch.Tensor  # (n,) discounted return to the episode's end


@dataclasses.dataclass(frozen=True, eq=False)
class StoredEpisodes:
    """All transitions of some episodes; what changes one makes another of these.

    Attributes:
        nvec: number of choices of each of the N slots.
        observations: `(sum(T + 1), obs)` float32; an episode's rows follow each other. With images
            their numbers alone.
        actions: `(n, N)` int8, int16 or int64.
        rewards: `(n,)` float32.
        terminals: `(n,)` float32, 1 where the task ended the episode.
        episode_starts: `(episodes + 1,)` index of each episode's first transition, and n.
        observation_index: `(n,)` row of each transition's observation; the next row is its next
            observation. In 32 bits from the start: small observations take no more than this does.
        following: `(n,)` the episode's next step, or the step itself if it is the last.
        masks: `(sum(T + 1), bytes)` uint8: of the observations; None without.
        source: which rows of a table the transitions are.
        named_rewards: if there are several of each transition; `rewards` are made of them.
        map_in: folder of the file with `observations`, if memory-mapped. They then stay in host
            memory when the rest moves to a GPU.
        history: if there is one, states are rows of the last observations, made when asked for.
        images: `(sum(T + 1), p)` uint8: pixels of the observations' images, each frame once; None
            without. They are where the observations are.
        observation_layout: of rows of numbers and pixels; None without images.
    """

    nvec: list[int]
    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    terminals: torch.Tensor
    episode_starts: torch.Tensor
    observation_index: torch.Tensor
    following: torch.Tensor
    masks: torch.Tensor | None
    source: SourceRows
    named_rewards: NamedRewards | None
    map_in: Path | None
    _unpacking: Unpacking
    _zero_and_one: torch.Tensor
    history: History | None = None
    images: torch.Tensor | None = None
    observation_layout: ObservationLayout | None = None

    @classmethod
    def from_stacked(cls, data: StackedEpisodes, map_in: Path | None) -> StoredEpisodes:
        """Takes checked arrays without copying them."""
        lengths, n = torch.tensor(data.lengths), len(data.rewards)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        episode_of = torch.repeat_interleave(torch.arange(len(lengths)).int(), lengths)
        following = torch.arange(1, n + 1, dtype=torch.int32)
        following[starts[1:] - 1] -= 1
        return cls(
            nvec=list(data.nvec),
            observations=torch.from_numpy(data.observations),
            actions=torch.from_numpy(data.actions),
            rewards=torch.from_numpy(data.rewards),
            terminals=torch.from_numpy(data.terminals),
            episode_starts=starts,
            observation_index=torch.arange(n, dtype=torch.int32).add_(episode_of),
            following=following,
            masks=None if data.masks is None else torch.from_numpy(data.masks),
            source=data.source or SourceRows.of_whole(n),
            named_rewards=data.named_rewards,
            map_in=map_in,
            _unpacking=Unpacking(data.nvec),
            _zero_and_one=torch.tensor([0.0, 1.0]),
            images=None if data.images is None else torch.from_numpy(data.images),
            observation_layout=data.observation_layout,
        )

    @property
    def device(self) -> torch.device:
        """Of all but memory-mapped observations."""
        return self.rewards.device

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(self.episode_starts) - 1

    def to(self, device: torch.device) -> StoredEpisodes:
        """Returns a copy on another device."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
            and not (name in ("observations", "images") and self.map_in is not None)
        }
        named = None if self.named_rewards is None else self.named_rewards.to(device)
        moved |= {"named_rewards": named, "_unpacking": self._unpacking.to(device)}
        return dataclasses.replace(self, **moved)

    def select(self, chosen: Sequence[int]) -> StoredEpisodes:
        """Returns a copy of the episodes with these numbers, in this order, on the same device."""
        starts = self.episode_starts.tolist()
        steps = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in chosen]).to(self.device)
        # Episode i's T + 1 observations begin i rows after its first transition's number.
        rows = torch.cat([torch.arange(starts[i] + i, starts[i + 1] + i + 1) for i in chosen])
        observations = allocate_observations(len(rows), self.observations.shape[1], self.map_in)
        _copy_rows(self.observations, rows, observations)
        images = None
        if self.images is not None:
            images = allocate_images(len(rows), self.images.shape[1], self.map_in)
            _copy_rows(self.images, rows, images)
        stacked = StackedEpisodes(
            observations,
            actions=self.actions[steps].cpu().numpy(),
            rewards=self.rewards[steps].cpu().numpy(),
            terminals=self.terminals[steps].cpu().numpy(),
            lengths=[starts[i + 1] - starts[i] for i in chosen],
            nvec=self.nvec,
            masks=None if self.masks is None else self.masks[rows.to(self.device)].cpu().numpy(),
            source=self.source.select(steps.cpu().numpy()),
            named_rewards=None if self.named_rewards is None else self.named_rewards.select(steps),
            images=images,
            observation_layout=self.observation_layout,
        )
        chosen_ones = StoredEpisodes.from_stacked(stacked, self.map_in).to(self.device)
        return dataclasses.replace(chosen_ones, history=self.history)

    @property
    def observation_size(self) -> int:
        """Length of a state: of an observation, or of a row of several."""
        size = self.observations.shape[1] + (0 if self.images is None else self.images.shape[1])
        return size if self.history is None else self.history.row_size(size)

    def observations_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns states `(R, obs)` in rows `(R,)`, on this device."""
        self._read_ahead(rows)
        return self._states(rows)

    def _read_ahead(self, rows: torch.Tensor) -> None:
        if self.map_in is None:
            return
        read = rows if self.history is None else self._last(rows)[0]
        for source in (self.observations, self.images):
            if source is not None and source.shape[1]:
                read_ahead(source, read)

    def _states(self, rows: torch.Tensor) -> torch.Tensor:
        if self.history is None:
            return self._gathered(rows)
        last, episode, is_missing = self._last(rows)
        observations = self._gathered(last.flatten()).unflatten(0, last.shape)
        made = self.actions[last[:, :-1] - episode].long()  # each episode has a row more than steps
        return self.history.rows(observations, made, is_missing)

    def _last(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns which rows `(R, n)` a history of rows `(R,)` holds, with the first one repeated.

        Also the numbers of their episodes `(R, 1)`, and which of all but the newest are missing,
        bool `(R, n - 1)`.
        """
        assert self.history is not None
        rows = rows.to(self.device, torch.int64)[:, None]
        episode = torch.searchsorted(self._first_rows, rows, right=True) - 1
        last = rows + torch.arange(1 - self.history.length, 1, device=self.device)
        first = self._first_rows[episode]
        return torch.maximum(last, first), episode, last[:, :-1] < first

    @functools.cached_property
    def _first_rows(self) -> torch.Tensor:
        """`(episodes,)` row of each episode's first observation."""
        starts = self.episode_starts[:-1]
        return starts + torch.arange(len(starts), device=self.device)

    def _gathered(self, rows: torch.Tensor) -> torch.Tensor:
        source, images = self.observations, self.images
        rows = rows.to(source.device)
        numbers = source.index_select(0, rows).to(self.device)
        if images is None:
            return numbers
        pixels = images.index_select(0, rows).to(self.device)  # as bytes, a quarter to copy
        return torch.cat([numbers, pixels.to(numbers.dtype)], dim=1)

    def masks_at(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns which choices may be made in observations' rows `(R,)`, `(R, N, K)` bool."""
        if self.masks is None:
            return None
        return self._unpacking(self.masks.index_select(0, rows))

    def transitions(self, index: torch.Tensor, horizon: Horizon | None) -> MiniBatch:
        """Returns the transitions at indices `(B,)`: steps, or to the end of their episode."""
        rows = self.observation_index.index_select(0, index)
        both = torch.cat([index, self.following.index_select(0, index)])
        actions, next_actions = self.actions.index_select(0, both).long().chunk(2)
        zeros, ones = self._zero_and_one[:, None, None].expand(-1, len(index), 1).unbind()
        last, next_rows, rewards, intervals = index, rows + 1, self.rewards, ones
        if horizon is not None:
            last = horizon.last.index_select(0, index)
            next_rows = self.observation_index.index_select(0, last) + 1
            rewards, intervals = horizon.to_end, (last - index + 1)[:, None].to(rewards.dtype)
        rewards = rewards.index_select(0, index)[:, None]
        self._read_ahead(torch.cat([rows, next_rows]))
        return MiniBatch(
            observations=self._states(rows),
            actions=actions,
            rewards=rewards,
            next_observations=self._states(next_rows),
            next_actions=next_actions,
            returns_to_go=zeros,
            terminals=self.terminals.index_select(0, last)[:, None],
            intervals=intervals,
            device=str(self.device),
            rows=rows,
            next_rows=next_rows,
            masks=self.masks_at(rows),
            next_masks=self.masks_at(next_rows),
            named_rewards=self._named_rewards_of(index),
        )

    def _named_rewards_of(self, index: torch.Tensor) -> torch.Tensor | None:
        named = self.named_rewards
        return None if named is None else named.values.index_select(0, index)

    def horizon(self, gamma: float) -> Horizon:
        """Returns what transitions to the end of their episodes are, by a discount."""
        lengths = self.episode_starts.diff()
        last = torch.repeat_interleave(self.episode_starts[1:] - 1, lengths)
        return Horizon(last, returns_to_go(self.rewards, self.episode_starts, gamma))

    def returns(self) -> torch.Tensor:
        """Returns the sum of each episode's rewards, `(episodes,)`, in float64."""
        total = self.rewards.double().cumsum(0)[self.episode_starts[1:] - 1]
        return torch.cat([total[:1], total.diff()])

    def completed_returns(self, rewards: torch.Tensor, gammas: Sequence[float]) -> torch.Tensor:
        """Returns to go of rewards `(n,)` by G discounts, `(G, n)`, see `weights`."""
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

    def halves(self) -> torch.Tensor:
        """Returns mean rewards of the first and the second half of episodes, `(episodes, 2)`."""
        starts, ends = self.episode_starts[:-1], self.episode_starts[1:]
        sums = torch.nn.functional.pad(self.rewards.double().cumsum(0), (1, 0))
        middle = (starts + ends) // 2
        first = (sums[middle] - sums[starts]) / (middle - starts).clamp(min=1)
        second = (sums[ends] - sums[middle]) / (ends - middle)
        return torch.stack([first, second], dim=1)

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns mean and standard deviation of the observations, `(obs,)` each, in float64.

        Those of pixels are not among them.
        """
        chunks = self.observations.split(_ROWS_AT_ONCE)  # views: no second copy in memory
        n = len(self.observations)
        mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / n
        squares = torch.stack([(chunk - mean).square().sum(0) for chunk in chunks]).sum(0)
        return mean, (squares / n).sqrt()

    def moments_of_changes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of how observations change from one step to the next."""
        sums = self.observations.new_zeros(2, self.observations.shape[1], dtype=torch.float64)
        for index in self.observation_index.split(_ROWS_AT_ONCE):
            before = index.to(self.observations.device, torch.int64)
            change = (self.observations[before + 1] - self.observations[before]).double()
            sums += torch.stack([change.sum(0), change.square().sum(0)])
        mean, squares = sums / len(self.rewards)
        return mean, (squares - mean.square()).clamp(min=0.0).sqrt()

    @functools.cached_property
    def of_d3rlpy(self) -> Sequence[EpisodeBase]:
        """The episodes in d3rlpy's form, without their last next observation."""
        if self.history is not None or self.images is not None:
            return _EpisodesOfRows(self)
        tensors = (self.observations, self.actions, self.rewards, self.terminals)
        observations, actions, rewards, terminals = (t.cpu().numpy() for t in tensors)
        starts = self.episode_starts.tolist()
        return [
            Episode(
                # Earlier episodes have one observation more than transitions each.
                observations=observations[start + i : end + i],
                actions=actions[start:end],
                rewards=rewards[start:end, None],
                terminated=bool(terminals[end - 1]),
            )
            for i, (start, end) in enumerate(itertools.pairwise(starts))
        ]


def _copy_rows(source: torch.Tensor, rows: torch.Tensor, to: NDArray[Any]) -> None:
    """Copies rows `(R,)` of a matrix to an array, piece by piece."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        to[part] = source[rows[part].to(source.device)].cpu().numpy()


class _EpisodesOfRows(Sequence[EpisodeBase]):
    """Episodes in d3rlpy's form whose states, of images or a history, are made when asked for."""

    def __init__(self, stored: StoredEpisodes) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return self._stored.n_episodes

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"There are {len(self)} episodes, got number {number}.")
        stored = self._stored
        start, end = stored.episode_starts[number % len(self) :][:2].tolist()
        steps = slice(start, end)
        return Episode(
            observations=stored.observations_at(stored.observation_index[steps]).cpu().numpy(),
            actions=stored.actions[steps].cpu().numpy(),
            rewards=stored.rewards[steps, None].cpu().numpy(),
            terminated=bool(stored.terminals[end - 1]),
        )


class StatesOfRows:
    """States of all rows, of which slices are made when asked for; such as `observations`."""

    def __init__(self, stored: StoredEpisodes) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored.observations)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        numbers = torch.arange(*rows.indices(len(self)), device=self._stored.device)
        return self._stored.observations_at(numbers)
