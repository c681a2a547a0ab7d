"""Six more tasks that were written after all settings, of kinds that the others are not.

Ends that an action causes, ends by chance, a reward that comes at the end alone, rewards that are
mostly noise, a log without chance, and 20 slots. Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


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


class Clinic(Task):
    """Doses of five drugs for 40 patients at most 30 days; bad values can be fatal by chance."""

    nvec, horizon, episodes = [4, 4, 4, 4, 4], 30, 600

    def begin(self) -> None:
        self.values = self.rng.normal(0.0, 1.5, (self.n, 4))
        self.build = self.rng.uniform(0.5, 1.5, (self.n, 1))
        self.is_fatal = np.zeros(self.n, bool)

    effects = np.random.default_rng(11).normal(0.0, 0.35, (5, 4))

    def observe(self) -> Floats:
        return np.concatenate([self.values, self.build], 1)

    def advance(self, actions: Ints) -> Floats:
        push = self.build * (actions - 1.0) @ self.effects
        push = push + 0.15 * (
            (actions[:, :1] > 1) & (actions[:, 1:2] > 1)
        )  # two do not go together
        self.values = 0.97 * self.values + push + self.rng.normal(0.0, 0.3, self.values.shape)
        bad = np.abs(self.values).sum(1)
        self.is_fatal = self.rng.random(self.n) < np.clip(0.01 * (bad - 4.0), 0.0, 0.3)
        return np.where(self.is_fatal, -20.0, 1.0 - 0.15 * bad)

    def fails(self) -> Ints:
        return self.is_fatal

    def rule(self) -> Ints:
        """Drugs that push against what is off, by a linear guess."""
        wanted = -self.values @ np.linalg.pinv(self.effects) / self.build
        return np.clip(np.round(0.6 * wanted + 1.0), 0, 3).astype(int)

    def log(self) -> Ints:
        wanted = -self.values @ np.linalg.pinv(self.effects)
        noise = self.rng.normal(0.0, 1.0, wanted.shape)
        return self.mixed(np.clip(np.round(0.25 * wanted + 1.0 + noise), 0, 3).astype(int), 0.15)


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


class Trader(Task):
    """Positions in ten assets; what they return is mostly noise, and changes cost."""

    nvec, horizon, episodes = [3] * 10, 50, 600
    beta = np.random.default_rng(3).normal(0.0, 0.25, (4, 10))

    def begin(self) -> None:
        self.factors = self.rng.normal(0.0, 1.0, (self.n, 4))
        self.held = np.ones((self.n, 10), int)

    def observe(self) -> Floats:
        return np.concatenate([self.factors, self.held - 1.0], 1)

    def advance(self, actions: Ints) -> Floats:
        market = self.rng.normal(0.0, 1.0, (self.n, 1))
        gains = self.factors @ self.beta + market + self.rng.normal(0.0, 1.0, (self.n, 10))
        position = actions - 1
        earned = (position * gains).sum(1) - 0.15 * np.abs(actions - self.held).sum(1)
        earned = earned - 0.05 * position.sum(1) ** 2  # exposure to the market is charged
        self.held = actions.copy()
        self.factors = 0.95 * self.factors + self.rng.normal(0.0, 0.3, self.factors.shape)
        return earned

    def _signs(self, seen: Floats, least: float) -> Ints:
        return (np.sign(np.where(np.abs(seen) > least, seen, 0.0)) + 1).astype(int)

    def rule(self) -> Ints:
        """Goes with the expected gain where it is large."""
        return self._signs(self.factors @ self.beta, 0.15)

    def log(self) -> Ints:
        guess = self.factors @ self.beta + self.rng.normal(0.0, 0.6, (self.n, 10))
        kept = self.rng.random(guess.shape) < 0.5
        return self.mixed(np.where(kept, self.held, self._signs(guess, 0.3)), 0.1)


class Crane(Task):
    """Seven joints reach for a target; the log is one controller without any chance."""

    nvec, horizon, episodes = [5] * 7, 50, 400
    arms = np.random.default_rng(7).normal(0.0, 1.0, (7, 3))

    def begin(self) -> None:
        self.angles = self.rng.uniform(-0.5, 0.5, (self.n, 7))
        self.target = self.rng.normal(0.0, 1.0, (self.n, 3))

    @property
    def _tip(self) -> Floats:
        return np.sin(self.angles) @ self.arms

    def observe(self) -> Floats:
        return np.concatenate([self.angles, self.target, self.target - self._tip], 1)

    def advance(self, actions: Ints) -> Floats:
        turned = 0.08 * (actions - 2)
        self.angles = np.clip(self.angles + turned, -1.5, 1.5)
        self.angles = self.angles + self.rng.normal(0.0, 0.01, self.angles.shape)
        far = np.sqrt(((self.target - self._tip) ** 2).sum(1))
        return -far - 0.01 * np.abs(actions - 2).sum(1)

    def _towards(self, strength: float) -> Ints:
        way = ((self.target - self._tip) @ self.arms.T) * np.cos(self.angles)
        return np.clip(np.round(strength * way) + 2, 0, 4).astype(int)

    def rule(self) -> Ints:
        """Each joint moves along the gradient."""
        return self._towards(0.8)

    def log(self) -> Ints:
        return self._towards(0.45)


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


LATER_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task for task in (Reactor, Clinic, Harvest, Trader, Crane, Packets)
}
