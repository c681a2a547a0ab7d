"""Tasks of fields, water and what spreads. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


class Irrigation(Task):
    """Valves of eight fields on one pump; two neighbors that are fully open burst a pipe."""

    nvec, horizon, episodes = [4] * 8, 60, 500

    def begin(self) -> None:
        shape = self.n, 8
        self.moisture = self.rng.uniform(2.0, 6.0, shape)
        self.target = self.rng.uniform(3.0, 6.0, shape)
        self.sun = self.rng.uniform(0.3, 1.0, (self.n, 1))

    @property
    def _lost(self) -> Floats:
        return self.sun * (0.4 + 0.1 * self.moisture)

    def observe(self) -> Floats:
        hour = np.full((self.n, 1), self.t / 60.0)
        return np.concatenate([self.moisture, self.target, self.sun, hour], 1)

    def advance(self, actions: Ints) -> Floats:
        total = actions.sum(1, keepdims=True)
        pressure = np.minimum(1.0, 10.0 / np.maximum(total, 1))
        bursts = ((actions[:, :-1] == 3) & (actions[:, 1:] == 3)).sum(1)
        flows = 0.05 * (self.moisture[:, :-1] - self.moisture[:, 1:])  # from each to the next one
        change = 0.6 * actions * pressure - self._lost
        change[:, :-1] -= flows
        change[:, 1:] += flows
        noise = self.rng.normal(0.0, 0.1, self.moisture.shape)
        self.moisture = np.clip(self.moisture + change + noise, 0.0, 10.0)
        self.sun = np.clip(self.sun + self.rng.normal(0.0, 0.05, self.sun.shape), 0.2, 1.2)
        dry_or_wet = np.abs(self.moisture - self.target).sum(1)
        return -dry_or_wet / 4.0 - 0.8 * bursts - 0.05 * total[:, 0]

    def rule(self) -> Ints:
        """Gives each field what it lacks."""
        lacking = self.target - self.moisture + self._lost
        return np.clip(np.round(lacking / 0.6), 0, 3).astype(int)

    def log(self) -> Ints:
        timetable = np.broadcast_to((self.t // 6 + np.arange(8)) % 4, (self.n, 8))
        uses_rule = self.rng.random((self.n, 8)) < 0.4
        return self.mixed(np.where(uses_rule, self.rule(), timetable), 0.2)


class Harvest(Task):
    """Twelve plots are left, watered or harvested; all is sold on the last day alone."""

    nvec, horizon, episodes = [3] * 12, 30, 800

    def begin(self) -> None:
        self.ripe = self.rng.uniform(0.0, 3.0, (self.n, 12))
        self.store = np.zeros((self.n, 3))  # of three crops
        self.water = np.full(self.n, 60.0)

    def observe(self) -> Floats:
        rest = np.stack([self.water / 20.0, np.full(self.n, self.t / 30.0)], 1)
        return np.concatenate([self.ripe, self.store / 10.0, rest], 1)

    def advance(self, actions: Ints) -> Floats:
        wants = (actions == 1).sum(1)
        is_watered = (actions == 1) & (wants <= self.water)[:, None]
        self.water = np.maximum(self.water - wants, 0.0)
        grown = 0.15 + 0.45 * is_watered + self.rng.normal(0.0, 0.05, self.ripe.shape)
        is_taken = actions == 2
        self.store += (self.ripe * is_taken).reshape(self.n, 3, 4).sum(2)
        ripe = np.where(is_taken, 0.0, self.ripe + np.maximum(grown, 0.0))
        self.ripe = np.where(ripe > 5.0, 1.0, ripe)  # it rots
        sold = np.sqrt(self.store).sum(1) + 0.1 * self.store.min(1)
        return np.where(self.t == self.horizon, sold, 0.0)

    def rule(self) -> Ints:
        """Waters the unripe, harvests what is above 4."""
        is_dry = (self.ripe < 3.0) & (self.rng.random(self.ripe.shape) < 0.3)
        late = self.t >= self.horizon - 1
        return np.where((self.ripe > 4.0) | late, 2, np.where(is_dry, 1, 0))

    def log(self) -> Ints:
        is_ripe = self.ripe > self.rng.uniform(1.5, 5.0, self.ripe.shape)
        is_dry = self.rng.random(self.ripe.shape) < 0.2
        return self.mixed(np.where(is_ripe, 2, np.where(is_dry, 1, 0)), 0.1)


class Jackpots(Task):
    """Eight wells are drilled to one of four depths each month; few of them pay, and much."""

    nvec, horizon, episodes = [4] * 8, 12, 1500

    def begin(self) -> None:
        self.rock = self.rng.uniform(0.0, 1.0, (self.n, 8))
        self.money = np.full(self.n, 20.0)

    def observe(self) -> Floats:
        return np.concatenate([self.rock, self.money[:, None] / 20.0], 1)

    def advance(self, actions: Ints) -> Floats:
        costs = (0.5 * actions).sum(1)
        can_pay = self.money >= costs
        depth = actions * can_pay[:, None] / 3.0
        chance = 0.04 * depth * np.exp(-(((depth - self.rock) / 0.25) ** 2))
        alone = 1.0 / (1.0 + 0.5 * ((depth > 0.0).sum(1, keepdims=True) - 1).clip(0))
        found = (self.rng.random((self.n, 8)) < chance) * self.rng.exponential(60.0, (self.n, 8))
        pays = (found * (0.5 + 0.5 * alone)).sum(1)
        paid = np.where(can_pay, costs, 0.0)
        self.money = self.money - paid + pays
        self.rock = np.clip(self.rock + self.rng.normal(0.0, 0.1, self.rock.shape), 0.0, 1.0)
        return pays - paid

    def rule(self) -> Ints:
        """As deep as the rock says."""
        return np.where(self.rock > 0.3, np.round(3.0 * self.rock), 0).astype(int)

    def log(self) -> Ints:
        noisy = self.rock + self.rng.normal(0.0, 0.3, (self.n, 8))
        return self.mixed(np.clip(np.round(3.0 * noisy), 0, 3).astype(int), 0.2)


class Epidemic(Task):
    """Six regions stay open, close in part, or close; travelers carry an infection between them."""

    nvec, horizon, episodes = [3] * 6, 60, 400

    def begin(self) -> None:
        self.ill = self.rng.uniform(0.0, 0.02, (self.n, 6))
        self.exposed = np.zeros((self.n, 6))
        self.immune = np.zeros((self.n, 6))
        self.rate = self.rng.uniform(0.35, 0.6, (self.n, 6))

    def observe(self) -> Floats:
        return np.concatenate([10.0 * self.ill, 10.0 * self.exposed, self.immune, self.rate], 1)

    def advance(self, actions: Ints) -> Floats:
        open_ = np.array([1.0, 0.6, 0.3])[actions]
        arrives = 0.1 * (np.roll(self.ill, 1, 1) + np.roll(self.ill, -1, 1)) * open_
        noise = np.exp(self.rng.normal(0.0, 0.1, (self.n, 6)))
        new = self.rate * open_ * (self.ill + arrives) * noise * (1.0 - self.immune)
        self.immune = np.clip(self.immune + 0.2 * self.ill, 0.0, 0.9)
        self.ill = np.clip(0.8 * self.ill + 0.4 * self.exposed, 1e-4, 1.0)
        self.exposed = np.clip(0.6 * self.exposed + new, 0.0, 1.0)
        return -(4.0 * self.ill + np.array([0.0, 0.08, 0.25])[actions]).sum(1)

    def rule(self) -> Ints:
        """Close where many are ill, in part where some are."""
        return (self.ill > 0.03).astype(int) + (self.ill > 0.1)

    def log(self) -> Ints:
        late = (self.ill > 0.08).astype(int) + (self.ill > 0.2)
        return self.mixed(late, 0.25)


class Fields(Task):
    """Pests come to eight fields, grow, and spread; sprays cost, and pests get used to one kind."""

    nvec, horizon, episodes = [3] * 8, 60, 400

    def begin(self) -> None:
        self.pests = np.where(self.rng.random((self.n, 8)) < 0.3, 0.3, 0.0)
        self.used_to = np.zeros((self.n, 2))

    def observe(self) -> Floats:
        return np.concatenate([self.pests, self.used_to], 1)

    def advance(self, actions: Ints) -> Floats:
        works = np.concatenate([np.zeros((self.n, 1)), 0.9 * (1.0 - self.used_to)], 1)
        self.pests = self.pests * (1.0 - np.take_along_axis(works, actions, 1))
        used = np.stack([(actions == kind).mean(1) for kind in (1, 2)], 1)
        self.used_to = np.clip(0.97 * self.used_to + 0.06 * used, 0.0, 0.9)
        near = np.roll(self.pests, 1, 1) + np.roll(self.pests, -1, 1)
        comes = self.rng.random((self.n, 8)) < 0.01 + 0.1 * near
        self.pests = np.minimum(1.25 * self.pests + 0.1 * comes, 2.0)
        self.pests[self.pests < 0.05] = 0.0
        return -self.pests.sum(1) - 0.15 * (actions > 0).sum(1)

    def rule(self) -> Ints:
        """Sprays where there are pests, by the kind that they are less used to."""
        kind = 1 + self.used_to.argmin(1)[:, None]
        return np.where(self.pests > 0.1, kind, 0)

    def log(self) -> Ints:
        late = self.pests > self.rng.uniform(0.1, 0.8, self.pests.shape)
        kind = 1 + (self.rng.random(self.pests.shape) < 0.3)
        return self.mixed(np.where(late, kind, 0), 0.15)


class Wells(Task):
    """Six wells share ground water, which flows between neighbors and returns slowly."""

    nvec, horizon, episodes = [4] * 6, 60, 300

    def begin(self) -> None:
        self.level = self.rng.uniform(4.0, 8.0, (self.n, 6))
        self.price = self.rng.uniform(0.5, 1.5, self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.level, self.price[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        pumped = np.minimum(0.4 * actions, 0.2 * self.level)
        lift = 0.15 * (10.0 - self.level)
        earned = (pumped * (self.price[:, None] - 0.3 * lift)).sum(1)
        flow = 0.1 * np.diff(self.level, axis=1)
        self.level[:, :-1] += flow
        self.level[:, 1:] -= flow
        rain = self.rng.gamma(2.0, 0.12, (self.n, 1))
        self.level = np.clip(self.level - pumped + rain, 0.0, 10.0)
        drift = 0.1 * (1.0 - self.price) + self.rng.normal(0.0, 0.08, self.n)
        self.price = np.clip(self.price + drift, 0.3, 2.0)
        return earned - 0.5 * (self.level < 1.5).sum(1)

    def rule(self) -> Ints:
        """More where the water is high, and at high prices."""
        wish = 0.5 * (self.level - 4.0) + 1.5 * (self.price[:, None] - 1.0)
        return np.clip(np.round(wish), 0, 3).astype(int)

    def log(self) -> Ints:
        return self.mixed(np.where(self.level > 3.0, 2, 0), 0.4)


TASKS = by_name(Irrigation, Harvest, Jackpots, Epidemic, Fields, Wells)
