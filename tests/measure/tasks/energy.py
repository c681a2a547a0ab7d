"""Tasks of power, heat and plants that run on them. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


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


class Reactor(Task):
    """Cooling of six vessels that heat each other; more heat produces more, too much ends it."""

    nvec, horizon, episodes = [4] * 6, 80, 400

    def begin(self) -> None:
        self.heat = self.rng.uniform(2.0, 5.0, (self.n, 6))
        self.feed = self.rng.uniform(0.5, 1.3, (self.n, 6))

    def observe(self) -> Floats:
        return np.concatenate([self.heat, self.feed], 1)

    def advance(self, actions: Ints) -> Floats:
        neighbors = (np.roll(self.heat, 1, 1) + np.roll(self.heat, -1, 1)) / 2.0
        power = np.minimum(1.0, 9.0 / np.maximum(actions.sum(1, keepdims=True), 1))
        change = self.feed + 0.15 * (neighbors - self.heat) + 0.02 * self.heat
        change = change - 0.7 * power * actions + self.rng.normal(0.0, 0.15, self.heat.shape)
        self.heat = np.maximum(self.heat + change, 0.0)
        self.feed = np.clip(self.feed + self.rng.normal(0.0, 0.04, self.feed.shape), 0.3, 1.5)
        made = self.heat.sum(1) / 20.0 - 0.03 * actions.sum(1)
        return np.where(self.fails(), -20.0, made)

    def fails(self) -> Ints:
        return (self.heat > 9.0).any(1)

    def _cool(self, level: Floats) -> Ints:
        return np.clip(np.round((self.heat + self.feed - level) / 0.7), 0, 3).astype(int)

    def rule(self) -> Ints:
        """Cools what is above 7."""
        return self._cool(np.full((self.n, 1), 7.0))

    def log(self) -> Ints:
        return self.mixed(self._cool(self.rng.uniform(3.0, 7.5, (self.n, 6))), 0.2)


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


class Furnaces(Task):
    """Five furnaces share a gas pipe; each is slow. 60 long shifts were logged, in pounds."""

    nvec, horizon, episodes = [4] * 5, 200, 60

    def begin(self) -> None:
        self.heat = self.rng.uniform(0.2, 0.8, (self.n, 5))
        self.flow = np.full((self.n, 5), 0.3)
        self.due = self.rng.uniform(0.4, 0.9, (self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.heat, self.flow, self.due], 1)

    def advance(self, actions: Ints) -> Floats:
        asked = actions / 3.0
        total = asked.sum(1, keepdims=True)
        got = asked * np.minimum(1.0, 2.5 / np.maximum(total, 1e-6))
        self.flow = 0.8 * self.flow + 0.2 * got
        cold = 0.08 * self.heat
        warm = 0.15 * self.flow * (1.2 - self.heat)
        self.heat = self.heat + warm - cold + self.rng.normal(0.0, 0.01, self.heat.shape)
        changes = self.rng.random((self.n, 5)) < 0.02
        self.due = np.where(changes, self.rng.uniform(0.3, 0.9, self.due.shape), self.due)
        off = np.abs(self.heat - self.due)
        return 1e5 * (1.0 - 2.0 * off.mean(1) - 0.1 * got.mean(1))

    def rule(self) -> Ints:
        """More gas the colder a furnace is for what is due."""
        need = 0.08 * self.due / (0.15 * (1.2 - self.due) + 1e-6)
        return np.clip(np.round(3.0 * (need + 4.0 * (self.due - self.heat))), 0, 3).astype(int)

    def log(self) -> Ints:
        is_cold = self.heat < self.due
        return self.mixed(np.where(is_cold, 2, 1), 0.3)


class Tanks(Task):
    """Six tanks in a row are filled and emptied by valves; one that overflows ends the shift."""

    nvec, horizon, episodes = [4] * 6, 50, 400

    def begin(self) -> None:
        self.level = self.rng.uniform(0.3, 0.7, (self.n, 6))
        self.inflow = self.rng.uniform(0.05, 0.25, (self.n, 1))

    def observe(self) -> Floats:
        return np.concatenate([self.level, self.inflow * 4.0], 1)

    def advance(self, actions: Ints) -> Floats:
        out = np.minimum(self.level, 0.1 * actions)
        came = np.concatenate([self.inflow, 0.8 * out[:, :-1]], 1)
        self.level = self.level - out + came
        self.inflow = np.clip(
            self.inflow + self.rng.normal(0.0, 0.01, self.inflow.shape), 0.03, 0.28
        )
        # High levels pay; the last tank's outflow is sold.
        return 2.0 * self.level.clip(max=1.0).mean(1) + 5.0 * out[:, -1] - 40.0 * self.fails()

    def fails(self) -> Ints:
        return (self.level > 1.0).any(1)

    def rule(self) -> Ints:
        """Wide open where it is nearly full."""
        return np.select([self.level > 0.8, self.level > 0.6, self.level > 0.4], [3, 2, 1], 0)

    def log(self) -> Ints:
        shut = self.level + self.rng.normal(0.0, 0.1, self.level.shape)
        wide = np.select([shut > 0.65, shut > 0.45, shut > 0.25], [3, 2, 1], 0)
        return self.mixed(wide, 0.15)


class Schedules(Task):
    """Ten rooms are heated by the clock, hardly ever otherwise; the log is nearly one policy's."""

    nvec, horizon, episodes = [3] * 10, 48, 300

    def begin(self) -> None:
        self.warm = self.rng.uniform(0.3, 0.6, (self.n, 10))
        self.outside = self.rng.uniform(-0.2, 0.3, self.n)

    def observe(self) -> Floats:
        hour = 2.0 * np.pi * self.t / 24.0
        clock = np.full((self.n, 2), [np.sin(hour), np.cos(hour)])
        return np.concatenate([self.warm, self.outside[:, None], clock], 1)

    @property
    def _is_day(self) -> bool:
        return 7 <= self.t % 24 < 19

    def advance(self, actions: Ints) -> Floats:
        wanted = 0.7 if self._is_day else 0.4
        walls = 0.05 * (np.roll(self.warm, 1, 1) + np.roll(self.warm, -1, 1) - 2.0 * self.warm)
        leak = 0.15 * (self.outside[:, None] - self.warm)
        self.warm = self.warm + walls + leak + 0.12 * actions
        off = np.abs(self.warm - wanted)
        return -(2.0 * off + 0.1 * actions).sum(1)

    def rule(self) -> Ints:
        """What brings a room next to what is wanted."""
        wanted = 0.7 if self._is_day else 0.4
        need = wanted - self.warm + 0.15 * (self.warm - self.outside[:, None])
        return np.clip(np.round(need / 0.12), 0, 2).astype(int)

    def log(self) -> Ints:
        return self.mixed(np.full((self.n, 10), 2 if self._is_day else 0), 0.03)


class Dams(Task):
    """Five dams in one river let water through for power, whose price changes with the hour."""

    nvec, horizon, episodes = [4] * 5, 72, 400
    most = np.array([12.0, 10.0, 8.0, 10.0, 14.0])

    def begin(self) -> None:
        self.water = self.rng.uniform(0.2, 0.8, (self.n, 5)) * self.most
        self.rain = self.rng.uniform(0.5, 1.5, self.n)
        self.hour = self.rng.uniform(0.0, 2.0 * np.pi, self.n)

    @property
    def _price(self) -> Floats:
        return 1.5 + np.sin(2.0 * np.pi * self.t / 24.0 + self.hour)

    def observe(self) -> Floats:
        angle = 2.0 * np.pi * self.t / 24.0 + self.hour
        rest = [self.rain, np.sin(angle), np.cos(angle), self._price]
        return np.concatenate([self.water, np.stack(rest, 1)], 1)

    def advance(self, actions: Ints) -> Floats:
        let = np.minimum(actions.astype(float), self.water)
        power = (let * (0.5 + self.water / self.most)).sum(1) * self._price
        self.water -= let
        self.water[:, 0] += self.rain
        self.water[:, 1:] += let[:, :-1] + 0.1 * self.rain[:, None]
        flood = np.maximum(self.water - self.most, 0.0)
        self.water -= flood
        noise = self.rng.normal(0.0, 0.15, self.n)
        self.rain = np.clip(0.9 * self.rain + 0.1 + noise, 0.0, 3.0)
        return power - 4.0 * flood.sum(1)

    def rule(self) -> Ints:
        """Lets through as much as comes, more where it is dear or the lake is full."""
        full = self.water / self.most
        wish = 1.0 + (self._price[:, None] > 1.8) + 2.0 * (full > 0.8) - 1.0 * (full < 0.3)
        return np.clip(wish, 0, 3).astype(int)

    def log(self) -> Ints:
        full = np.floor(4.0 * self.water / self.most + self.rng.normal(0.0, 0.4, (self.n, 5)))
        return self.mixed(np.clip(full, 0, 3).astype(int), 0.2)


class Kilns(Task):
    """Five kilns share gas; what they burn pays by its heat, and one that is too hot bursts."""

    nvec, horizon, episodes = [4] * 5, 60, 400

    def begin(self) -> None:
        self.heat = self.rng.uniform(1.0, 3.0, (self.n, 5))
        self.load = self.rng.uniform(0.5, 1.5, (self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.heat, self.load], 1)

    def advance(self, actions: Ints) -> Floats:
        gas = actions * np.minimum(1.0, 8.0 / np.maximum(actions.sum(1, keepdims=True), 1))
        change = (0.5 * gas - 0.15 * self.heat) / self.load
        self.heat = np.maximum(self.heat + change + self.rng.normal(0.0, 0.2, change.shape), 0.0)
        done = self.rng.random(self.load.shape) < 0.05
        self.load = np.where(done, self.rng.uniform(0.5, 1.5, self.load.shape), self.load)
        burns = np.exp(-np.square(self.heat - 4.5)).sum(1)
        return burns - 0.1 * actions.sum(1) - 30.0 * self.fails()

    def fails(self) -> Ints:
        return (self.heat > 6.0).any(1)

    def rule(self) -> Ints:
        """Gas for what is cold, none for what is hot."""
        return np.select([self.heat < 2.5, self.heat < 3.5, self.heat < 4.5], [3, 2, 1], 0)

    def log(self) -> Ints:
        seen = self.heat + self.rng.normal(0.0, 0.7, self.heat.shape)
        return self.mixed(np.select([seen < 2.0, seen < 3.0, seen < 4.2], [3, 2, 1], 0), 0.2)


class Boilers(Task):
    """Six boilers heat a building; the log keeps them warm, and a cold one bursts its pipes."""

    nvec, horizon, episodes = [4] * 6, 60, 300

    def begin(self) -> None:
        self.heat = self.rng.uniform(50.0, 70.0, (self.n, 6))
        self.outside = self.rng.uniform(-5.0, 10.0, self.n)
        self.price = self.rng.uniform(0.5, 1.5, self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.heat, self.outside[:, None], self.price[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        lost = 0.06 * (self.heat - self.outside[:, None])
        mixing = 0.05 * (self.heat.mean(1, keepdims=True) - self.heat)
        noise = self.rng.normal(0.0, 0.5, self.heat.shape)
        self.heat = np.clip(self.heat + 2.5 * actions - lost + mixing + noise, 0.0, 95.0)
        self.outside = np.clip(self.outside + self.rng.normal(0.0, 0.8, self.n), -15.0, 15.0)
        drift = 0.1 * (1.0 - self.price) + self.rng.normal(0.0, 0.08, self.n)
        self.price = np.clip(self.price + drift, 0.3, 2.0)
        comfort = -0.02 * np.maximum(50.0 - self.heat, 0.0).sum(1)
        return comfort - 0.1 * self.price * actions.sum(1) - 2.0 * (self.heat < 30.0).sum(1)

    def rule(self) -> Ints:
        """As much as is lost at 52 degrees, and more below."""
        wish = 0.06 * (52.0 - self.outside[:, None]) / 2.5 + 0.2 * (52.0 - self.heat)
        return np.clip(np.round(wish), 0, 3).astype(int)

    def log(self) -> Ints:
        return self.mixed(np.where(self.heat < 52.0, 2, 1), 0.3)


class Rooms(Task):
    """Six rooms that nobody heats enough: all that is better lies beyond what was logged."""

    nvec, horizon, episodes = [4] * 6, 60, 300

    def begin(self) -> None:
        self.heat = self.rng.uniform(12.0, 17.0, (self.n, 6))
        self.outside = self.rng.uniform(-5.0, 10.0, self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.heat, self.outside[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        lost = 0.08 * (self.heat - self.outside[:, None])
        through = np.zeros_like(self.heat)
        flow = 0.1 * np.diff(self.heat, axis=1)
        through[:, :-1] += flow
        through[:, 1:] -= flow
        noise = self.rng.normal(0.0, 0.3, self.heat.shape)
        self.heat = self.heat + 1.0 * actions - lost + through + noise
        self.outside = np.clip(self.outside + self.rng.normal(0.0, 0.5, self.n), -8.0, 12.0)
        return -0.1 * np.abs(self.heat - 21.0).sum(1) - 0.05 * actions.sum(1)

    def rule(self) -> Ints:
        """As much as is lost at 21 degrees, and more below."""
        wish = 0.08 * (21.0 - self.outside[:, None]) + 0.5 * (21.0 - self.heat)
        return np.clip(np.round(wish), 0, 3).astype(int)

    def log(self) -> Ints:
        return self.mixed(np.where(self.heat < 15.0, 1, 0), 0.4)


TASKS = by_name(
    Power, Reactor, Batteries, Greenhouse, Furnaces, Tanks, Schedules, Dams, Kilns, Boilers, Rooms
)
