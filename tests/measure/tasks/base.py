"""What a task is: a simulation of many episodes at once, a log's policy, and a rule of thumb."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

# NumPy's own types of these sums are `Any`.
Floats: TypeAlias = Any
Ints: TypeAlias = Any


class Task(ABC):
    """`n` episodes, simulated in parallel.

    Attributes:
        nvec: number of choices of each slot.
        horizon: most steps of an episode.
        episodes: of the log.
    """

    nvec: ClassVar[list[int]]
    horizon: ClassVar[int]
    episodes: ClassVar[int]

    def reset(self, n: int, seed: int) -> None:
        """Begins n episodes."""
        self.rng, self.n, self.t = np.random.default_rng(seed), n, 0
        self.is_over = np.zeros(n, bool)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Draws the first states."""

    @abstractmethod
    def observe(self) -> Floats:
        """Returns observations `(n, obs)`."""

    def step(self, actions: Ints) -> Floats:
        """Takes actions `(n, N)` and returns rewards `(n,)`, 0 of episodes that are over."""
        self.t += 1
        rewards = np.where(self.is_over, 0.0, self.advance(actions))
        self.is_over |= self.fails()
        return rewards

    def fails(self) -> Ints:
        """Returns which episodes the task ends in this state, `(n,)`."""
        return np.zeros(self.n, bool)

    @abstractmethod
    def advance(self, actions: Ints) -> Floats:
        """Changes the states and returns rewards `(n,)`."""

    @abstractmethod
    def rule(self) -> Ints:
        """Returns what a good rule of thumb does, `(n, N)`."""

    @abstractmethod
    def log(self) -> Ints:
        """Returns what was logged, `(n, N)`."""

    def mixed(self, actions: Ints, share: float) -> Ints:
        """Returns actions of which each slot's is random by chance."""
        random = self.rng.integers(0, self.nvec[0], actions.shape)
        return np.where(self.rng.random(actions.shape) < share, random, actions)


def by_name(*tasks: type[Task]) -> dict[str, type[Task]]:
    """Returns tasks by their names in small letters."""
    return {task.__name__.lower(): task for task in tasks}


def logged(task: Task, seed: int) -> tuple[Floats, Ints, Floats, Ints]:
    """Returns observations `(E, T, obs)`, actions `(E, T, N)` and rewards `(E, T)` of a log.

    Also where episodes are over after the step, `(E, T)`.
    """
    task.reset(task.episodes, seed)
    steps = []
    for _ in range(task.horizon):
        seen, actions = task.observe(), task.log()
        steps.append((seen, actions, task.step(actions), task.is_over.copy()))
    observations, actions, rewards, over = (np.stack(part, 1) for part in zip(*steps, strict=True))
    return observations, actions, rewards, over


def returns(task: Task, act: Callable[[NDArray[np.float32]], Ints], n: int, seed: int) -> Floats:
    """Returns what a policy returns in n episodes, `(n,)`."""
    task.reset(n, seed)
    total = np.zeros(n)
    for _ in range(task.horizon):
        total += task.step(act(task.observe().astype(np.float32)))
    return total
