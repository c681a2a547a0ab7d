"""Histories: the last observations of an episode, and the actions between them, as one row.

A row `(obs,)` of a single observation becomes one with, in this order:

- the last n observations, the oldest first and the newest last;
- with actions, those made after each of them but the newest, oldest first, each slot one-hot;
- a 1 for each of them but the newest that is missing, because the episode had not begun, else 0.
  In place of a missing observation stands the episode's first, in place of an action zeros.

Datasets make rows when they are asked for (`StoredEpisodes`), acting keeps them (`Recent`), and
files that are exported take them as input.

Axes: `B` rows, `n` observations, `N` slots, `S` all choices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidObservationError


@dataclasses.dataclass(frozen=True)
class History:
    """How rows of the last observations are made; see the module.

    Attributes:
        length: observations of a row (n), at least 2.
        with_actions: whether the actions between them are in it.
        nvec: number of choices of each slot.
    """

    length: int
    with_actions: bool
    nvec: tuple[int, ...]

    @classmethod
    def of(cls, config: Any) -> History | None:
        """Returns that of an algorithm's config, None if one observation is all that it sees."""
        length: int = getattr(config, "history", 1)
        if length == 1:
            return None
        return cls(length, config.history_actions, tuple(config.nvec))

    @property
    def _others(self) -> int:
        """Numbers of a row that are no observations."""
        return (self.length - 1) * (1 + (sum(self.nvec) if self.with_actions else 0))

    def row_size(self, observation_size: int) -> int:
        """Returns the length of a row of observations of this length."""
        return self.length * observation_size + self._others

    def observation_size(self, row_size: int) -> int:
        """Returns the length of the observations in a row of this length.

        Raises:
            InvalidObservationError: there are no rows of this length.
        """
        size, rest = divmod(int(row_size) - self._others, self.length)  # traced: a tensor
        if rest or size < 1:
            raise InvalidObservationError(
                f"Expected rows of {self.length} observations and {self._others} more numbers "
                f"(history={self.length}, history_actions={self.with_actions}), got {row_size}."
            )
        return size

    def newest(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the newest observations `(B, obs)` in rows."""
        size = self.observation_size(rows.shape[-1])
        return rows[..., (self.length - 1) * size : self.length * size]

    def rows(
        self, observations: torch.Tensor, actions: torch.Tensor, is_missing: torch.Tensor
    ) -> torch.Tensor:
        """Returns rows of the last observations.

        Args:
            observations: `(B, n, obs)`, with an episode's first in place of missing ones.
            actions: `(B, n - 1, N)` int64, any choices where observations are missing.
            is_missing: bool `(B, n - 1)`.
        """
        parts = [observations.flatten(1)]
        if self.with_actions:
            places = actions + _first_places(self.nvec, actions.device)
            known = (~is_missing).to(observations.dtype)[..., None].expand(places.shape)
            shape = (*is_missing.shape, sum(self.nvec))
            empty = torch.zeros(shape, dtype=observations.dtype, device=actions.device)
            parts.append(empty.scatter(2, places, known).flatten(1))
        return torch.cat([*parts, is_missing.to(observations.dtype)], dim=1)

    def of_episode(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[Any]:
        """Returns rows `(T, row)` of an episode's observations `(T, obs)` and actions `(T, N)`."""
        steps = np.arange(len(observations))[:, None] + np.arange(1 - self.length, 1)
        known = np.maximum(steps, 0)
        seen = torch.from_numpy(np.asarray(observations, np.float32)[known])
        made = torch.from_numpy(np.asarray(actions, np.int64)[known[:, :-1]])
        return self.rows(seen, made, torch.from_numpy(steps[:, :-1] < 0)).numpy()

    def spread(
        self, of_newest: torch.Tensor, of_earlier: torch.Tensor, of_others: float
    ) -> torch.Tensor:
        """Returns a number of each feature `(obs,)`, such as its mean, for each place of a row.

        Args:
            of_newest: of the newest observation's features.
            of_earlier: of the other observations' features.
            of_others: of all numbers that are no observations.
        """
        others = of_newest.new_full((self._others,), of_others)
        return torch.cat([of_earlier.repeat(self.length - 1), of_newest, others])


def as_changes(rows: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Returns rows in which each observation but the newest is the change that came after it.

    Next observations are nearly alike, so that a network would have to learn small differences of
    large numbers, such as a velocity from two positions.

    Args:
        rows: `(B, row)`, of observations, the newest last, and then other numbers.
        length: observations of a row (n).
        size: numbers of an observation (obs).
    """
    before = (length - 1) * size
    return torch.cat([rows[:, size : before + size] - rows[:, :before], rows[:, before:]], dim=1)


def from_changes(rows: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Inverse of `as_changes`."""
    seen = [rows[:, i * size : (i + 1) * size] for i in range(length)]
    for i in reversed(range(length - 1)):
        seen[i] = seen[i + 1] - seen[i]
    return torch.cat([*seen, rows[:, length * size :]], dim=1)


@functools.cache
def _first_places(nvec: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Returns where each slot's choices begin, `(N,)`; kept, as a recording cannot make them."""
    return torch.tensor([sum(nvec[:slot]) for slot in range(len(nvec))], device=device)


class Recent:
    """The last observations and actions of environments that are played in, as rows.

    Args:
        history: of whoever acts; None gives observations as they are.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        # Of each episode, observations and the actions after them.
        self._steps: dict[int, deque[tuple[NDArray[np.float32], NDArray[np.int64]]]] = {}

    def rows(self, observations: NDArray[Any], episodes: Sequence[int]) -> NDArray[Any]:
        """Returns rows `(B, row)` of new observations `(B, obs)` of these episodes, `(B,)`.

        An episode that nothing is known of begins.
        """
        if self._history is None:
            return observations
        n, nothing = self._history.length, np.zeros(len(self._history.nvec), np.int64)
        seen, made, counts = [], [], []
        for episode, observation in zip(episodes, observations, strict=True):
            steps = self._steps.get(episode, ())
            counts.append(len(steps))
            past = [*(before for before, _ in steps), np.asarray(observation, np.float32)]
            seen.append(np.stack([*[past[0]] * (n - len(past)), *past]))
            actions = [action for _, action in steps]
            made.append(np.stack([*[nothing] * (n - 1 - len(actions)), *actions]))
        missing = torch.arange(n - 1) < n - 1 - torch.tensor(counts)[:, None]
        parts = torch.from_numpy(np.stack(seen)), torch.from_numpy(np.stack(made)), missing
        return self._history.rows(*parts).numpy()

    def acted(
        self, observations: NDArray[Any], actions: NDArray[Any], episodes: Sequence[int]
    ) -> None:
        """Takes note of the actions `(B, N)` in observations `(B, obs)` of these episodes."""
        if self._history is None:
            return
        for episode, before, action in zip(episodes, observations, actions, strict=True):
            steps = self._steps.setdefault(episode, deque(maxlen=self._history.length - 1))
            steps.append((np.array(before, np.float32), np.array(action, np.int64)))
