"""Tasks by which the model of states was designed, and no other setting was chosen.

Each has a log by a mediocre policy with noise, and a rule that people would try. Units are their
own.
"""

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


class Signals(Task):
    """Eight traffic lights in two rows of four; what passes one waits at the next."""

    nvec, horizon, episodes = [3] * 8, 100, 300

    def begin(self) -> None:
        shape = self.n, 8, 4
        self.waiting = self.rng.poisson(1.0, shape).astype(float)
        self.last = np.zeros((self.n, 8), int)
        self.rate = self.rng.uniform(0.2, 0.9, shape) * np.array([1.0, 1.0, 0.7, 0.7])
        self.offset = self.rng.integers(0, 8, (self.n, 8))

    def observe(self) -> Floats:
        lights = np.eye(3)[self.last].reshape(self.n, -1)
        return np.concatenate([self.waiting.reshape(self.n, -1), lights], 1)

    def advance(self, actions: Ints) -> Floats:
        both = (actions == 2) * 1.0
        north_south, east_west = (actions == 0) * 3.0 + both, (actions == 1) * 3.0 + both
        green = np.stack([north_south, north_south, east_west, east_west], -1)
        green = np.maximum(green - 1.5 * (actions != self.last)[..., None], 0.0)
        passed = np.minimum(self.waiting, np.floor(green + self.rng.random(green.shape)))
        at = passed.reshape(self.n, 2, 4, 4)  # row, column, heading north, south, east, west
        arrives = np.zeros_like(at)
        arrives[:, 0, :, 0] += at[:, 1, :, 0]
        arrives[:, 1, :, 1] += at[:, 0, :, 1]
        arrives[:, :, 1:, 2] += at[:, :, :-1, 2]
        arrives[:, :, :-1, 3] += at[:, :, 1:, 3]
        edge = np.zeros((2, 4, 4))
        edge[1, :, 0] = edge[0, :, 1] = edge[:, 0, 2] = edge[:, 3, 3] = 1.0
        new = self.rng.poisson(self.rate) * edge.reshape(8, 4)
        self.waiting = np.minimum(self.waiting - passed + arrives.reshape(self.n, 8, 4) + new, 20.0)
        self.last = actions.copy()
        return -self.waiting.sum((1, 2)) / 10.0

    def rule(self) -> Ints:
        """The longer queue has green, unless both are alike."""
        north_south, east_west = self.waiting[..., :2].sum(-1), self.waiting[..., 2:].sum(-1)
        longer = np.where(north_south >= east_west, 0, 1)
        is_alike = (np.abs(north_south - east_west) < 3.0) & (self.last < 2)
        return np.where(is_alike, self.last, longer)

    def log(self) -> Ints:
        fixed = (self.t + self.offset) // 4 % 2
        mixed = np.where(self.rng.random(fixed.shape) < 0.3, self.rule(), fixed)
        return self.mixed(mixed, 0.15)


class Stock(Task):
    """Orders of ten products that share a truck of 15; what is ordered arrives a day later."""

    nvec, horizon, episodes = [5] * 10, 50, 600

    def begin(self) -> None:
        shape = self.n, 10
        self.stock = self.rng.integers(0, 6, shape).astype(float)
        self.demand = self.rng.uniform(0.3, 2.5, shape)
        self.ordered = np.zeros(shape)
        self.habit = self.rng.uniform(1.5, 4.0, (self.n, 1))

    def observe(self) -> Floats:
        return np.concatenate([self.stock, self.ordered, self.demand], 1)

    def advance(self, actions: Ints) -> Floats:
        wanted = self.rng.poisson(self.demand)
        there = self.stock + self.ordered
        sold = np.minimum(there, wanted)
        self.stock, self.ordered = np.minimum(there - sold, 20.0), actions.astype(float)
        missed, too_much = (wanted - sold).sum(1), np.maximum(actions.sum(1) - 15, 0)
        costs = 0.15 * self.stock.sum(1) + 0.5 * missed + 2.0 * too_much
        return sold.sum(1) - costs - 0.1 * (actions > 0).sum(1)

    def _up_to(self, level: Floats) -> Ints:
        return np.clip(np.round(level - self.stock - self.ordered), 0, 4).astype(int)

    def rule(self) -> Ints:
        """Orders up to what is needed until the next delivery."""
        return self._up_to(2.3 * self.demand + 1.0)

    def log(self) -> Ints:
        noise = self.rng.normal(0.0, 1.0, self.stock.shape)
        return self.mixed(self._up_to(self.habit * self.demand + noise), 0.15)


class Collectors(Task):
    """Six agents on a grid of 8 x 8 collect items; each pair in one cell costs 0.3."""

    nvec, horizon, episodes = [5] * 6, 50, 600
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def begin(self) -> None:
        self.agents = self.rng.integers(0, 8, (self.n, 6, 2))
        self.items = self.rng.integers(0, 8, (self.n, 8, 2))

    def observe(self) -> Floats:
        both = np.concatenate([self.agents, self.items], 1)
        return both.reshape(self.n, -1).astype(float)

    def advance(self, actions: Ints) -> Floats:
        self.agents = np.clip(self.agents + self.moves[actions], 0, 7)
        found = (self.agents[:, :, None] == self.items[:, None]).all(-1).any(1)
        pairs = (self.agents[:, :, None] == self.agents[:, None]).all(-1).sum((1, 2)) - 6
        new = self.rng.integers(0, 8, self.items.shape)
        self.items = np.where(found[..., None], new, self.items)
        return found.sum(1) - 0.3 * pairs / 2

    def rule(self) -> Ints:
        """Each goes to the nearest item. Agents that meet stay together."""
        distance = np.abs(self.agents[:, :, None] - self.items[:, None]).sum(-1)
        nearest = distance.argmin(2)[..., None]
        way = np.take_along_axis(self.items, nearest, 1) - self.agents
        along_x = np.where(way[..., 0] > 0, 1, 2)
        along_y = np.where(way[..., 1] > 0, 3, 4)
        longer = np.where(np.abs(way[..., 0]) >= np.abs(way[..., 1]), along_x, along_y)
        return np.where((way == 0).all(-1), 0, longer)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.5)


class Power(Task):
    """Levels of eight power plants; starting one costs, a gap costs more."""

    nvec, horizon, episodes = [4] * 8, 48, 600
    capacity = np.array([30.0, 25.0, 20.0, 20.0, 15.0, 10.0, 10.0, 5.0])
    price = np.array([1.0, 1.2, 1.5, 1.6, 2.0, 3.0, 3.2, 5.0])
    start = np.array([20.0, 15.0, 10.0, 10.0, 6.0, 3.0, 3.0, 1.0])

    def begin(self) -> None:
        self.level = self.rng.integers(0, 4, (self.n, 8))
        self.phase = self.rng.uniform(0.0, 2.0 * np.pi, self.n)
        self.usual, self.noise = self.rng.uniform(50.0, 90.0, self.n), np.zeros(self.n)
        self._draw_demand()

    @property
    def _angle(self) -> Floats:
        return 2.0 * np.pi * self.t / 24.0 + self.phase

    def _draw_demand(self) -> None:
        self.noise = 0.8 * self.noise + self.rng.normal(0.0, 4.0, self.n)
        self.demand = np.clip(self.usual + 25.0 * np.sin(self._angle) + self.noise, 10.0, 130.0)

    def observe(self) -> Floats:
        levels = np.eye(4)[self.level].reshape(self.n, -1)
        angle = self._angle
        rest = [self.demand / 30.0, np.sin(angle), np.cos(angle), self.usual / 30.0]
        return np.concatenate([levels, np.stack(rest, 1)], 1)

    def advance(self, actions: Ints) -> Floats:
        output = self.capacity * actions / 3.0
        started = (actions > 0) & (self.level == 0)
        changed = np.abs(actions - self.level) * self.capacity / 3.0
        costs = (output * self.price + self.start * started + 0.06 * changed).sum(1)
        gap = self.demand - output.sum(1)
        costs += 10.0 * np.maximum(gap, 0.0) + 0.5 * np.maximum(-gap, 0.0)
        self.level = actions.copy()
        self._draw_demand()
        return -costs / 50.0

    def _cheapest(self, needed: Floats) -> Ints:
        levels, needed = np.zeros((self.n, 8), int), needed.copy()
        for i, capacity in enumerate(self.capacity):
            levels[:, i] = np.clip(np.ceil(needed / (capacity / 3.0)), 0, 3)
            needed -= levels[:, i] * capacity / 3.0
        return levels

    def rule(self) -> Ints:
        """The cheapest plants first, for a little more than is needed now."""
        return self._cheapest(self.demand + 4.0)

    def log(self) -> Ints:
        levels = self._cheapest(self.demand + self.rng.normal(8.0, 15.0, self.n))
        kept = np.where(self.rng.random(levels.shape) < 0.2, self.level, levels)
        return self.mixed(kept, 0.1)


class Bundles(Task):
    """Six choices of eight, made once; each pair of choices has a value of its own."""

    nvec, horizon, episodes = [8] * 6, 1, 20_000

    def __init__(self) -> None:
        fixed = np.random.default_rng(5)
        self.taste = fixed.normal(size=(6, 6, 8)) * 0.5
        self.together = fixed.normal(size=(6, 6, 8, 8)) * 0.6

    def begin(self) -> None:
        self.x = self.rng.normal(size=(self.n, 6))

    def observe(self) -> Floats:
        return self.x

    def value(self, actions: Ints) -> Floats:
        """Returns what bundles are worth, `(n,)`."""
        total = np.zeros(self.n)
        for i in range(6):
            total += (self.x * self.taste[i][:, actions[:, i]].T).sum(1)
            for j in range(i):
                total += self.together[i, j][actions[:, i], actions[:, j]]
        return total

    def advance(self, actions: Ints) -> Floats:
        return self.value(actions) + self.rng.normal(0.0, 1.0, self.n)

    def rule(self) -> Ints:
        """Improves the best choice for each taste, slot after slot, by the true values."""
        actions = np.stack([(self.x @ self.taste[i]).argmax(1) for i in range(6)], 1)
        best = self.value(actions)
        for _ in range(3):
            for i in range(6):
                for choice in range(8):
                    other = actions.copy()
                    other[:, i] = choice
                    worth = self.value(other)
                    actions = np.where((worth > best)[:, None], other, actions)
                    best = np.maximum(worth, best)
        return actions

    def log(self) -> Ints:
        noise = self.rng.gumbel(size=(6, self.n, 8))
        return np.stack([(self.x @ self.taste[i] + noise[i]).argmax(1) for i in range(6)], 1)


class Machines(Task):
    """Eight machines run hard, gently, or are maintained, two at a time; worn ones break down."""

    nvec, horizon, episodes = [3] * 8, 60, 500

    def begin(self) -> None:
        self.wear, self.down = self.rng.uniform(0.0, 5.0, (self.n, 8)), np.zeros((self.n, 8))

    def observe(self) -> Floats:
        return np.concatenate([self.wear, self.down / 5.0], 1)

    def advance(self, actions: Ints) -> Floats:
        runs = self.down == 0.0
        maintained = (actions == 0) & runs
        maintained &= np.cumsum(maintained, 1) <= 2
        earned = np.where(runs, np.array([0.0, 1.0, 1.6])[actions], 0.0).sum(1)
        added = np.where(runs, np.array([0.0, 0.3, 0.8])[actions], 0.0)
        added *= self.rng.uniform(0.5, 1.5, self.wear.shape)
        self.wear = np.where(maintained, np.maximum(self.wear - 4.0, 0.0), self.wear + added)
        risk = np.clip((self.wear - 4.0) / 20.0, 0.0, 0.6)
        breaks = runs & (self.rng.random(self.wear.shape) < risk) & (actions > 0)
        self.down = np.where(breaks, 12.0, np.maximum(self.down - 1.0, 0.0))
        self.wear = np.where(breaks, 2.0, self.wear)
        return earned

    def rule(self) -> Ints:
        """Maintains the two that are worn most."""
        actions = np.where(self.wear < 5.0, 2, 1)
        most = np.argsort(-self.wear, 1)[:, :2]
        worn = np.take_along_axis(self.wear, most, 1) > 4.0
        np.put_along_axis(actions, most, np.where(worn, 0, np.take_along_axis(actions, most, 1)), 1)
        return actions

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.35)


DESIGN_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task for task in (Machines, Signals, Power, Stock, Collectors, Bundles)
}


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
