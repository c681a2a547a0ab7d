"""Six tasks that were written after all settings, as a test of them; messages has mended one since.

Two habits that exclude each other, many levels of few prices, a log that is nearly the best,
storage whose use pays much later, customers who leave by chance, and 2,000 rows with slots of
unlike sizes. Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


class Lanes(Task):
    """Eight vehicles pass a narrow road; half of the logged crews keep left, half right."""

    nvec, horizon, episodes = [4] * 8, 40, 400

    def begin(self) -> None:
        self.place = self.rng.uniform(-1.0, 1.0, (self.n, 8))  # across the road
        self.load = self.rng.uniform(0.0, 1.0, (self.n, 8))
        self.keeps_left = self.rng.random(self.n) < 0.5

    def observe(self) -> Floats:
        return np.concatenate([self.place, self.load], 1)

    def advance(self, actions: Ints) -> Floats:
        # Choices: stop, go straight, go and bear left, go and bear right.
        aim = np.array([0.0, 0.0, -0.5, 0.5])[actions]
        moves = actions > 0
        self.place = np.clip(self.place + aim + self.rng.normal(0.0, 0.1, self.place.shape), -1, 1)
        meets = np.zeros((self.n, 8), bool)
        for i in range(8):  # each meets the next one, which comes the other way
            j = (i + 1) % 8
            is_close = np.abs(self.place[:, i] + self.place[:, j]) < 0.35
            meets[:, i] |= is_close & moves[:, i] & moves[:, j]
        wins = (moves * (0.5 + self.load)).sum(1)
        self.load = np.clip(self.load + self.rng.normal(0.0, 0.1, self.load.shape), 0.0, 1.0)
        return wins - 4.0 * meets.sum(1)

    def _kept(self, left: Ints) -> Ints:
        wanted = np.where(left[:, None], -0.6, 0.6)
        off = wanted - self.place
        return np.where(off < -0.25, 2, np.where(off > 0.25, 3, 1))

    def rule(self) -> Ints:
        """All keep right."""
        return self._kept(np.zeros(self.n, bool))

    def log(self) -> Ints:
        stops = self.rng.random((self.n, 8)) < 0.2
        return self.mixed(np.where(stops, 0, self._kept(self.keeps_left)), 0.1)


class Prices(Task):
    """Four prices of 50 levels each, once a visitor; products take each other's buyers."""

    nvec, horizon, episodes = [50] * 4, 1, 25_000

    def __init__(self) -> None:
        fixed = np.random.default_rng(21)
        self.cost = fixed.uniform(3.0, 8.0, 4)
        self.taste = fixed.normal(0.0, 0.6, (5, 4))

    def begin(self) -> None:
        self.x = self.rng.normal(size=(self.n, 5))

    def observe(self) -> Floats:
        return self.x

    def advance(self, actions: Ints) -> Floats:
        price = 2.0 + 0.4 * actions
        appeal = 3.0 + self.x @ self.taste - 0.35 * price
        shares = np.exp(appeal) / (1.0 + np.exp(appeal).sum(1, keepdims=True))
        bought = self.rng.random((self.n, 4)) < shares
        return ((price - self.cost) * bought).sum(1)

    def rule(self) -> Ints:
        """The same margin on all, more where the visitor likes the product."""
        wanted = self.cost + 5.0 + (self.x @ self.taste)
        return np.clip(np.round((wanted - 2.0) / 0.4), 0, 49).astype(int)

    def log(self) -> Ints:
        wanted = self.cost + 2.5 + self.rng.normal(0.0, 2.0, (self.n, 4))
        return np.clip(np.round((wanted - 2.0) / 0.4), 0, 49).astype(int)


class Elevators(Task):
    """Five lifts in eight floors; the log is a good dispatcher that is seldom wrong."""

    nvec, horizon, episodes = [3] * 5, 60, 400

    def begin(self) -> None:
        self.floor = self.rng.integers(0, 8, (self.n, 5))
        self.calls = self.rng.poisson(0.5, (self.n, 8)).astype(float)

    def observe(self) -> Floats:
        return np.concatenate([self.floor / 4.0, self.calls], 1)

    def advance(self, actions: Ints) -> Floats:
        moved = actions - 1
        self.floor = np.clip(self.floor + moved, 0, 7)
        served = np.zeros((self.n, 8))
        np.add.at(served, (np.arange(self.n)[:, None], self.floor), 2.0 * (moved == 0))
        self.calls = np.maximum(self.calls - served, 0.0)
        self.calls = np.minimum(self.calls + self.rng.poisson(0.25, self.calls.shape), 10.0)
        return -self.calls.sum(1) / 5.0 - 0.02 * np.abs(moved).sum(1)

    def rule(self) -> Ints:
        """One lift after another goes where most wait for the way, and takes them."""
        calls, actions = self.calls.copy(), np.ones((self.n, 5), int)
        rows = np.arange(self.n)
        for i in range(5):
            far = np.abs(np.arange(8) - self.floor[:, i : i + 1])
            goal = (calls - 0.7 * far).argmax(1)
            actions[:, i] = np.sign(goal - self.floor[:, i]) + 1
            calls[rows, goal] = np.maximum(calls[rows, goal] - 2.0, 0.0)
        return actions

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.05)


class Batteries(Task):
    """Six batteries charge, wait or discharge; prices come in waves, and cycles wear them."""

    nvec, horizon, episodes = [3] * 6, 72, 400
    size = np.array([4.0, 4.0, 6.0, 6.0, 8.0, 8.0])

    def begin(self) -> None:
        self.charge = self.rng.uniform(0.0, 1.0, (self.n, 6)) * self.size
        self.phase = self.rng.uniform(0.0, 2.0 * np.pi, self.n)
        self.noise = np.zeros(self.n)
        self.last = np.ones((self.n, 6), int)

    @property
    def _price(self) -> Floats:
        return 3.0 + 2.0 * np.sin(2.0 * np.pi * self.t / 24.0 + self.phase) + self.noise

    def observe(self) -> Floats:
        angle = 2.0 * np.pi * self.t / 24.0 + self.phase
        rest = np.stack([self._price, np.sin(angle), np.cos(angle)], 1)
        return np.concatenate([self.charge, self.last - 1.0, rest], 1)

    def advance(self, actions: Ints) -> Floats:
        price = self._price[:, None]
        flow = np.where(actions == 0, np.minimum(1.0, self.size - self.charge), 0.0)
        flow = flow - np.where(actions == 2, np.minimum(1.0, self.charge), 0.0)
        self.charge = self.charge + 0.95 * np.maximum(flow, 0.0) + np.minimum(flow, 0.0)
        grid = flow.sum(1)
        turns = (np.abs(actions - self.last) == 2).sum(1)
        self.last = actions.copy()
        self.noise = 0.8 * self.noise + self.rng.normal(0.0, 0.3, self.n)
        return -(price[:, 0] * grid) - 0.15 * np.maximum(np.abs(grid) - 4.0, 0.0) ** 2 - 0.3 * turns

    def _by_price(self, low: Floats, high: Floats) -> Ints:
        price = np.broadcast_to(self._price[:, None], (self.n, 6))
        return np.where(price < low, 0, np.where(price > high, 2, 1))

    def rule(self) -> Ints:
        """Charges below 2.2, discharges above 3.8."""
        return self._by_price(np.array(2.2), np.array(3.8))

    def log(self) -> Ints:
        middle = 3.0 + self.rng.normal(0.0, 1.2, (self.n, 6))
        return self.mixed(self._by_price(middle - 0.8, middle + 0.8), 0.2)


class Messages(Task):
    """Eight channels write to a customer, who gets tired of them, unseen, and may leave."""

    nvec, horizon, episodes = [3] * 8, 40, 1000
    appeal = np.random.default_rng(31).uniform(0.2, 1.0, (8, 3))

    def begin(self) -> None:
        self.interest = self.rng.normal(0.0, 1.0, (self.n, 3))
        self.tired = np.zeros(self.n)
        self.last = np.zeros((self.n, 8), int)
        self.leaves = np.zeros(self.n, bool)

    def observe(self) -> Floats:
        return np.concatenate([self.interest, self.last / 2.0], 1)

    def advance(self, actions: Ints) -> Floats:
        liked = 1.0 / (1.0 + np.exp(-(self.interest @ self.appeal.T - 0.5)))
        clicks = self.rng.random((self.n, 8)) < 0.25 * liked * actions
        self.tired = 0.8 * self.tired + 0.2 * actions.sum(1)
        self.leaves = self.rng.random(self.n) < np.clip(0.015 * (self.tired - 3.0), 0.0, 0.5)
        self.interest = 0.9 * self.interest + self.rng.normal(0.0, 0.4, self.interest.shape)
        self.last = actions.copy()
        return clicks.sum(1) - 0.05 * actions.sum(1) - 10.0 * self.leaves

    def fails(self) -> Ints:
        return self.leaves

    def rule(self) -> Ints:
        """The four channels that are liked most, once."""
        liked = self.interest @ self.appeal.T
        return (liked.argsort(1).argsort(1) >= 4).astype(int)

    def log(self) -> Ints:
        eager = self.rng.uniform(-1.0, 1.0, (self.n, 1))
        wanted = 0.6 * (self.interest @ self.appeal.T) + eager
        noisy = wanted + self.rng.normal(0.0, 0.7, wanted.shape)
        return np.clip(np.round(noisy + 0.5), 0, 2).astype(int)


class Greenhouse(Task):
    """Vents, heat, light, water, feed and screens of a greenhouse; only forty days are logged."""

    nvec, horizon, episodes = [2, 7, 3, 5, 3, 2], 50, 40

    def begin(self) -> None:
        self.inside = self.rng.uniform(10.0, 20.0, self.n)
        self.outside = self.rng.uniform(0.0, 15.0, self.n)
        self.moist, self.food = self.rng.uniform(0.3, 0.7, (2, self.n))

    @property
    def _sun(self) -> Floats:
        return np.maximum(np.sin(2.0 * np.pi * self.t / 50.0), 0.0) * np.ones(self.n)

    def observe(self) -> Floats:
        seen = [self.inside / 10.0, self.outside / 10.0, self.moist, self.food, self._sun]
        return np.stack(seen, 1)

    def advance(self, actions: Ints) -> Floats:
        vent, heat, light, water, feed, screen = actions.T
        leak = 0.1 + 0.25 * vent - 0.06 * screen
        sun = self._sun * (1.0 - 0.5 * screen)
        change = leak * (self.outside - self.inside) + 0.8 * heat + 4.0 * sun
        self.inside = self.inside + change + self.rng.normal(0.0, 0.3, self.n)
        self.outside = np.clip(self.outside + self.rng.normal(0.0, 0.5, self.n), -5.0, 25.0)
        used = 0.08 + 0.05 * sun
        self.moist = np.clip(self.moist - used + 0.06 * water, 0.0, 1.0)
        self.food = np.clip(self.food - 0.05 + 0.05 * feed, 0.0, 1.0)
        warm = np.exp(-(((self.inside - 22.0) / 5.0) ** 2))
        fed = np.minimum(self.food, 0.6) * np.exp(-(((self.moist - 0.6) / 0.2) ** 2))
        growth = 5.0 * warm * fed * (0.3 + sun + 0.3 * light)
        return growth - 0.08 * heat - 0.15 * light - 0.02 * water - 0.03 * feed

    def _climate(self, warm: Floats, wet: Floats) -> Ints:
        heat = np.clip(np.round(warm - self.inside), 0, 6)
        vent = self.inside > warm + 4.0
        water = np.clip(np.round((wet - self.moist) / 0.06 + 1.0), 0, 4)
        dark = self._sun < 0.3
        feed = np.where(self.food < 0.6, 2, 1)
        return np.stack([vent, heat, dark * 1, water, feed, dark & ~vent], 1).astype(int)

    def rule(self) -> Ints:
        """Keeps 20 degrees and enough water."""
        return self._climate(np.full(self.n, 20.0), np.full(self.n, 0.6))

    def log(self) -> Ints:
        warm, wet = self.rng.uniform(13.0, 24.0, self.n), self.rng.uniform(0.2, 0.8, self.n)
        actions = self._climate(warm, wet)
        random = self.rng.integers(0, np.array(self.nvec), actions.shape)
        return np.where(self.rng.random(actions.shape) < 0.2, random, actions)


UNSEEN_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task
    for task in (Lanes, Prices, Elevators, Batteries, Messages, Greenhouse)
}
