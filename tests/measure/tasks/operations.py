"""Tasks of traffic, goods, machines and staff. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


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


class Packets(Task):
    """Twenty routers each send to one of four neighbors; who gets too much drops the rest."""

    nvec, horizon, episodes = [4] * 20, 40, 500

    def __init__(self) -> None:
        fixed = np.random.default_rng(13)
        self.neighbors = np.stack([fixed.permutation(20)[:4] for _ in range(20)])
        self.fee = fixed.uniform(0.0, 0.1, (20, 4))

    def begin(self) -> None:
        self.queue = self.rng.integers(0, 4, (self.n, 20)).astype(float)
        self.rate = self.rng.uniform(0.3, 1.2, (self.n, 20))

    def observe(self) -> Floats:
        return np.concatenate([self.queue, self.rate], 1)

    def advance(self, actions: Ints) -> Floats:
        sent = np.minimum(self.queue, 2.0)
        to = self.neighbors[np.arange(20), actions]  # (n, 20)
        arrived = np.zeros((self.n, 20))
        np.add.at(arrived, (np.arange(self.n)[:, None], to), sent)
        passed = np.minimum(arrived, 3.0)  # these leave the network
        self.queue = self.queue - sent + self.rng.poisson(self.rate)
        dropped = (arrived - passed) + np.maximum(self.queue - 8.0, 0.0)
        self.queue = np.minimum(self.queue, 8.0)
        fees = (self.fee[np.arange(20), actions] * sent).sum(1)
        return passed.sum(1) / 5.0 - 0.5 * dropped.sum(1) - fees

    def rule(self) -> Ints:
        """One router after another takes the neighbor that has least so far."""
        load, actions = np.zeros((self.n, 20)), np.zeros((self.n, 20), int)
        sent = np.minimum(self.queue, 2.0)
        for i in range(20):
            best = (load[:, self.neighbors[i]] + self.fee[i]).argmin(1)
            actions[:, i] = best
            np.add.at(load, (np.arange(self.n), self.neighbors[i][best]), sent[:, i])
        return actions

    def log(self) -> Ints:
        cheapest = np.broadcast_to(self.fee.argmin(1), (self.n, 20))
        takes_rule = self.rng.random((self.n, 20)) < 0.5
        return self.mixed(np.where(takes_rule, self.rule(), cheapest), 0.3)


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


class Orders(Task):
    """Eight goods arrive three days after they are ordered, in one lorry."""

    nvec, horizon, episodes = [5] * 8, 60, 300

    def __init__(self) -> None:
        fixed = np.random.default_rng(52)
        self.sold = fixed.uniform(1.0, 3.0, 8)
        self.price = fixed.uniform(1.0, 4.0, 8)

    def begin(self) -> None:
        self.stock = self.rng.integers(2, 10, (self.n, 8)).astype(float)
        self.coming = np.zeros((self.n, 3, 8))

    def observe(self) -> Floats:
        season = np.sin(2.0 * np.pi * self.t / 20.0)
        both = np.concatenate([self.stock, self.coming.reshape(self.n, -1)], 1) / 10.0
        return np.concatenate([both, np.full((self.n, 1), season)], 1)

    def advance(self, actions: Ints) -> Floats:
        self.stock += self.coming[:, 0]
        season = 1.0 + 0.5 * np.sin(2.0 * np.pi * self.t / 20.0)
        wanted = self.rng.poisson(self.sold * season, (self.n, 8))
        sales = np.minimum(wanted, self.stock)
        self.stock = self.stock - sales
        loaded = actions.sum(1)
        share = np.minimum(1.0, 18.0 / np.maximum(loaded, 1))[:, None]  # what the lorry holds
        came = np.floor(actions * share)
        self.coming = np.concatenate([self.coming[:, 1:], came[:, None]], 1)
        held = 0.15 * self.stock.sum(1)
        return (self.price * sales).sum(1) - held - 0.5 * came.sum(1) - 2.0 * (loaded > 0)

    def _short(self, days: float) -> Floats:
        return self.sold * days - self.stock - self.coming.sum(1)

    def rule(self) -> Ints:
        """Up to what is sold in four and a half days, and a day's more."""
        return np.clip(np.round(self._short(5.5)), 0, 4).astype(int)

    def log(self) -> Ints:
        days = self._short(4.0) + self.rng.normal(0.0, 1.5, (self.n, 8))
        return self.mixed(np.clip(np.round(days), 0, 4).astype(int), 0.15)


class Caches(Task):
    """Eight servers in a ring store one of six contents each, and serve their neighbors, too."""

    nvec, horizon, episodes = [6] * 8, 50, 400

    def begin(self) -> None:
        self.wish = self.rng.normal(0.0, 1.0, (self.n, 8, 6))
        self.stored = self.rng.integers(0, 6, (self.n, 8))

    def observe(self) -> Floats:
        stored = np.eye(6)[self.stored].reshape(self.n, -1)
        return np.concatenate([self.wish.reshape(self.n, -1), stored], 1)

    def advance(self, actions: Ints) -> Floats:
        demand = np.exp(self.wish)
        demand /= demand.sum(2, keepdims=True)
        has = np.eye(6)[actions]
        near = np.maximum(np.roll(has, 1, 1), np.roll(has, -1, 1))
        served = (demand * np.maximum(has, 0.7 * near)).sum((1, 2))
        moved = (actions != self.stored).sum(1)
        self.stored = actions.copy()
        self.wish = 0.95 * self.wish + self.rng.normal(0.0, 0.3, self.wish.shape)
        return served - 0.1 * moved + self.rng.normal(0.0, 0.3, self.n)

    def rule(self) -> Ints:
        """What each one's own guests want most, if it is worth a change."""
        best, rows = self.wish.argmax(2), np.arange(self.n)[:, None]
        gains = np.take_along_axis(self.wish, best[..., None], 2)[..., 0]
        gains = gains - self.wish[rows, np.arange(8), self.stored]
        return np.where(gains > 0.5, best, self.stored)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.3)


class Line(Task):
    """Six stations in a row work slowly, at usual speed or fast; between them little has room."""

    nvec, horizon, episodes = [3] * 6, 80, 300

    def begin(self) -> None:
        self.stock = self.rng.uniform(1.0, 4.0, (self.n, 5))
        self.worn = self.rng.uniform(0.0, 0.5, (self.n, 6))
        self.wanted = self.rng.uniform(0.6, 1.4, self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.stock, self.worn, self.wanted[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        speed = np.array([0.5, 1.0, 1.6])[actions] * (1.0 - 0.5 * self.worn)
        speed = speed * np.exp(self.rng.normal(0.0, 0.1, speed.shape))
        has = np.concatenate([np.full((self.n, 1), 9.0), self.stock], 1)
        room = np.concatenate([5.0 - self.stock, np.full((self.n, 1), 9.0)], 1)
        done = np.minimum(np.minimum(speed, has), room)
        self.stock = np.clip(self.stock + done[:, :-1] - done[:, 1:], 0.0, 5.0)
        self.worn = np.clip(self.worn + 0.03 * (actions == 2) - 0.03 * (actions == 0), 0.0, 1.0)
        sold = np.minimum(done[:, -1], self.wanted)
        self.wanted = np.clip(self.wanted + self.rng.normal(0.0, 0.1, self.n), 0.5, 1.5)
        return 3.0 * sold - 0.3 * done[:, 0] - 0.05 * self.stock.sum(1) - 0.1 * actions.sum(1)

    def rule(self) -> Ints:
        """Fast if there is much before a station and little behind it, slow the other way."""
        before = np.concatenate([np.full((self.n, 1), 2.5), self.stock], 1)
        after = np.concatenate([self.stock, np.full((self.n, 1), 2.5)], 1)
        return 1 + (before - after > 1.0).astype(int) - (before - after < -1.0)

    def log(self) -> Ints:
        return self.mixed(np.ones((self.n, 6), int), 0.5)


class Staff(Task):
    """Six clerks serve, learn or rest; who is tired serves badly, and skills come slowly."""

    nvec, horizon, episodes = [3] * 6, 50, 300

    def begin(self) -> None:
        self.skill = self.rng.uniform(0.2, 0.6, (self.n, 6))
        self.tired = self.rng.uniform(0.0, 0.5, (self.n, 6))
        self.waiting = self.rng.uniform(0.0, 4.0, self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.skill, self.tired, self.waiting[:, None] / 5.0], 1)

    def advance(self, actions: Ints) -> Floats:
        able = (actions == 0) * self.skill * (1.0 - 0.7 * self.tired)
        served = np.minimum(able.sum(1), self.waiting)
        new = self.rng.poisson(1.8, self.n)
        self.waiting = np.minimum(self.waiting - served + new, 20.0)
        learned = 0.12 * (actions == 1) * (1.0 - self.skill) * (1.0 - self.tired)
        self.skill = np.clip(self.skill + learned - 0.003, 0.0, 1.0)
        change = np.array([0.12, 0.06, -0.25])[actions]
        self.tired = np.clip(self.tired + change, 0.0, 1.0)
        return served - 0.1 * self.waiting

    def rule(self) -> Ints:
        """Who is tired rests, who knows little learns, unless many wait."""
        learns = (self.skill < 0.6) & (self.waiting[:, None] < 8.0)
        return np.where(self.tired > 0.6, 2, np.where(learns, 1, 0))

    def log(self) -> Ints:
        return self.mixed(np.where(self.tired > 0.7, 2, 0), 0.4)


TASKS = by_name(Signals, Stock, Machines, Packets, Elevators, Orders, Caches, Line, Staff)
