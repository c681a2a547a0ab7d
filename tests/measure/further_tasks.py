"""Six tasks that were written after the check of the model of states, as a test of it.

Units that fight together, turbines in each other's wakes, jobs on machines, sensors that see the
same, agents who are paid only if all arrive, and trucks that crash. Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


class Skirmish(Task):
    """Five units each take cover or shoot at one of five enemies; the log shoots at any."""

    nvec, horizon, episodes = [6] * 5, 40, 800

    def __init__(self) -> None:
        fixed = np.random.default_rng(41)
        self.power = fixed.uniform(0.08, 0.16, 5)
        self.threat = fixed.uniform(0.05, 0.17, 5)

    def begin(self) -> None:
        self.health = self.rng.uniform(0.7, 1.0, (self.n, 5))
        self.enemies = self.rng.uniform(0.6, 1.0, (self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.health, self.enemies], 1)

    def advance(self, actions: Ints) -> Floats:
        rows, lives = np.arange(self.n)[:, None], self.health > 0.0
        hits = np.zeros((self.n, 6))
        shots = lives * self.power * (self.rng.random((self.n, 5)) < 0.8)
        np.add.at(hits, (rows, actions), shots)
        before = self.enemies.copy()
        self.enemies = np.maximum(self.enemies - hits[:, 1:], 0.0)
        target = (lives[:, None] * self.rng.random((self.n, 5, 5))).argmax(2)
        hurt = np.zeros((self.n, 5))
        np.add.at(hurt, (rows, target), self.threat * (before > 0.0))
        hurt = np.minimum(hurt * np.where(actions == 0, 0.4, 1.0), self.health)
        self.health = self.health - hurt
        won = (self.enemies == 0.0).all(1) & (before > 0.0).any(1)
        return (before - self.enemies).sum(1) - hurt.sum(1) + 5.0 * won

    def fails(self) -> Ints:
        return (self.health <= 0.0).all(1) | (self.enemies == 0.0).all(1)

    def rule(self) -> Ints:
        """All shoot at the one that threatens most for the health it has left."""
        worth = np.where(self.enemies > 0.0, self.threat / np.maximum(self.enemies, 0.05), -1.0)
        return np.repeat(worth.argmax(1)[:, None] + 1, 5, 1)

    def log(self) -> Ints:
        liked = self.rng.random((self.n, 5, 5)) + (self.enemies > 0.0)[:, None]
        covers = self.rng.random((self.n, 5)) < 0.15 + 0.3 * (self.health < 0.3)
        return self.mixed(np.where(covers, 0, liked.argmax(2) + 1), 0.1)


class Turbines(Task):
    """Nine turbines in three rows turn a little out of the wind, and their wakes with them."""

    nvec, horizon, episodes = [5] * 9, 1, 20_000
    angle = np.array([-0.5, -0.25, 0.0, 0.25, 0.5])

    def begin(self) -> None:
        self.wind = self.rng.uniform(6.0, 12.0, self.n)
        self.side = self.rng.uniform(-1.0, 1.0, self.n)  # where it comes from

    def observe(self) -> Floats:
        return np.stack([self.wind / 10.0, self.side], 1)

    def advance(self, actions: Ints) -> Floats:
        turned = self.angle[actions].reshape(-1, 3, 3)  # rows, then lines
        speed = np.repeat(self.wind[:, None], 3, 1)
        made, wake = np.zeros(self.n), np.zeros((self.n, 3))
        for row in range(3):
            off = np.abs(wake + 0.6 * self.side[:, None])
            lost = 0.0 if row == 0 else 0.45 * np.exp(-((off / 0.4) ** 2))
            here = speed * (1.0 - lost)
            made += ((here / 10.0) ** 3 * np.cos(turned[:, row]) ** 2).sum(1)
            wake = 0.5 * wake + 1.4 * turned[:, row]
        return made + self.rng.normal(0.0, 0.5, self.n)

    def rule(self) -> Ints:
        """The first two rows turn their wakes to the side that they are on, the last does not."""
        out = np.where(self.side > 0.0, 3, 1)
        return np.stack([np.repeat(out[:, None], 6, 1), np.full((self.n, 6), 2)], 2).reshape(
            self.n, -1
        )[:, [0, 2, 4, 6, 8, 10, 1, 3, 5]]

    def log(self) -> Ints:
        habit = np.clip(np.round(2.0 + self.rng.normal(0.0, 0.9, (self.n, 9))), 0, 4)
        return habit.astype(int)


class Jobs(Task):
    """Twenty jobs on five machines of unlike speeds; it counts when the last one ends."""

    nvec, horizon, episodes = [5] * 20, 1, 20_000
    speed = np.array([1.0, 1.3, 0.7, 1.6, 0.9])

    def begin(self) -> None:
        self.sizes = self.rng.gamma(2.0, 0.5, (self.n, 20))

    def observe(self) -> Floats:
        return self.sizes

    def advance(self, actions: Ints) -> Floats:
        load = np.zeros((self.n, 5))
        np.add.at(load, (np.arange(self.n)[:, None], actions), self.sizes)
        return -(load / self.speed).max(1)

    def rule(self) -> Ints:
        """The longest job first, each where it ends soonest."""
        load, actions, rows = np.zeros((self.n, 5)), np.zeros((self.n, 20), int), np.arange(self.n)
        for job in (-self.sizes).argsort(1).T:
            ends = (load + self.sizes[rows, job][:, None]) / self.speed
            actions[rows, job] = ends.argmin(1)
            load[rows, actions[rows, job]] += self.sizes[rows, job]
        return actions

    def log(self) -> Ints:
        share = self.speed / self.speed.sum()
        return np.array(self.rng.choice(5, (self.n, 20), p=share))


class Sensors(Task):
    """Thirty sensors are on or off; each sees some of forty places, which count once."""

    nvec, horizon, episodes = [2] * 30, 1, 15_000
    sees = np.random.default_rng(51).random((30, 40)) < 0.12
    wanted = np.random.default_rng(52).normal(0.0, 0.3, (6, 40))

    def begin(self) -> None:
        self.x = self.rng.normal(size=(self.n, 6))

    def observe(self) -> Floats:
        return self.x

    @property
    def _worth(self) -> Floats:
        return np.exp(self.x @ self.wanted - 0.5)

    def advance(self, actions: Ints) -> Floats:
        seen = (actions @ self.sees) > 0
        return (seen * self._worth).sum(1) - 1.2 * actions.sum(1)

    def rule(self) -> Ints:
        """One sensor after another, where it adds most, while it adds anything."""
        actions, left = np.zeros((self.n, 30), int), self._worth.copy()
        for _ in range(30):
            adds = left @ self.sees.T - 1.2 - 1e9 * actions
            best = adds.argmax(1)
            is_on = adds.max(1) > 0.0
            actions[np.arange(self.n)[is_on], best[is_on]] = 1
            left = np.where(is_on[:, None] & self.sees[best], 0.0, left)
        return actions

    def log(self) -> Ints:
        alone = self._worth @ self.sees.T
        chance = 1.0 / (1.0 + np.exp(-(alone - 4.0) / 3.0))
        return (self.rng.random(chance.shape) < 0.1 + 0.4 * chance).astype(int)


class Pads(Task):
    """Four agents on a grid of 5 x 5; they are paid once, when each stands on its pad."""

    nvec, horizon, episodes = [5] * 4, 40, 1500
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    pads = np.array([[0, 0], [0, 4], [4, 0], [4, 4]])

    def begin(self) -> None:
        self.places = self.rng.integers(0, 5, (self.n, 4, 2))

    def observe(self) -> Floats:
        return self.places.reshape(self.n, -1) / 2.0 - 1.0

    def advance(self, actions: Ints) -> Floats:
        self.places = np.clip(self.places + self.moves[actions], 0, 4)
        return np.where(self.fails(), 10.0, 0.0) - 0.1

    def fails(self) -> Ints:
        return (self.places == self.pads).all((1, 2))

    def rule(self) -> Ints:
        """Each goes to its pad and waits there."""
        way = self.pads - self.places
        along_x = np.where(way[..., 0] > 0, 1, 2)
        along_y = np.where(way[..., 1] > 0, 3, 4)
        there = np.where(way[..., 0] != 0, along_x, along_y)
        return np.where((way == 0).all(-1), 0, there)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.5)


class Trucks(Task):
    """Six trucks follow another one; close ones need less fuel, and one that touches crashes."""

    nvec, horizon, episodes = [5] * 6, 60, 400
    change = np.array([-1.0, -0.4, 0.0, 0.4, 1.0])

    def begin(self) -> None:
        self.gap = self.rng.uniform(3.0, 6.0, (self.n, 6))
        self.speed = self.rng.uniform(4.5, 5.5, (self.n, 7))  # the first is the one they follow

    def observe(self) -> Floats:
        return np.concatenate([self.gap / 3.0, self.speed / 5.0], 1)

    def advance(self, actions: Ints) -> Floats:
        first = self.speed[:, 0] + self.rng.normal(0.0, 0.25, self.n)
        rest = np.clip(self.speed[:, 1:] + self.change[actions], 0.0, 10.0)
        self.speed = np.concatenate([np.clip(first, 3.0, 8.0)[:, None], rest], 1)
        self.gap = self.gap + 0.5 * (self.speed[:, :-1] - self.speed[:, 1:])
        drag = 0.4 + 0.6 * np.clip(self.gap / 4.0, 0.0, 1.0)
        fuel = (drag * rest**2).sum(1) / 100.0 + 0.05 * np.abs(self.change[actions]).sum(1)
        far = 0.2 * np.maximum(self.gap - 8.0, 0.0).sum(1)
        return 2.5 - fuel - far - 20.0 * self.fails()

    def fails(self) -> Ints:
        return (self.gap < 0.0).any(1)

    def _keeps(self, gap: Floats) -> Ints:
        wanted = 0.4 * (self.gap - gap) + 0.9 * (self.speed[:, :-1] - self.speed[:, 1:])
        return np.abs(wanted[..., None] - self.change).argmin(-1)

    def rule(self) -> Ints:
        """Keeps a gap of 3."""
        return self._keeps(np.full((self.n, 6), 3.0))

    def log(self) -> Ints:
        return self.mixed(self._keeps(self.rng.uniform(2.0, 6.0, (self.n, 1))), 0.1)


FURTHER_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task for task in (Skirmish, Turbines, Jobs, Sensors, Pads, Trucks)
}
