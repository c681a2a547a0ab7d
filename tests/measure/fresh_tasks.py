"""Tasks that were written after all settings, to see whether these hold elsewhere.

As in `tests.measure.switch_tasks`, each has a log by a mediocre policy with noise, and a rule that
people would try. Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


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


class Radio(Task):
    """Channels of ten radio links, 0 is off; links on one channel disturb each other. One step."""

    nvec, horizon, episodes = [4] * 10, 1, 20_000

    def begin(self) -> None:
        self.senders = self.rng.uniform(0.0, 1.0, (self.n, 10, 2))
        self.offsets = self.rng.normal(0.0, 0.08, (self.n, 10, 2))  # of receivers
        self.worth = self.rng.uniform(0.5, 2.0, (self.n, 10))

    def observe(self) -> Floats:
        places = self.senders.reshape(self.n, -1), self.offsets.reshape(self.n, -1)
        return np.concatenate([*places, self.worth], 1)

    def advance(self, actions: Ints) -> Floats:
        receivers = self.senders + self.offsets
        square = ((self.senders[:, :, None] - receivers[:, None]) ** 2).sum(-1) + 1e-3
        power = square**-1.5  # (n, sender, receiver)
        is_on = actions > 0
        together = (actions[:, :, None] == actions[:, None]) & is_on[:, :, None]
        own = np.einsum("nii->ni", power) * is_on
        disturbance = (power * together).sum(1) - own
        rates = np.log1p(own / (50.0 + disturbance))
        return (self.worth * rates).sum(1) - 0.1 * is_on.sum(1)

    def rule(self) -> Ints:
        """Three channels in turn."""
        return np.tile(np.arange(10) % 3 + 1, (self.n, 1))

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.5)


class Platform(Task):
    """Eight thrusters, each forward, off or back, hold a platform still in three axes."""

    nvec, horizon, episodes = [3] * 8, 60, 500
    axes = np.random.default_rng(5).normal(0.0, 1.0, (8, 3))  # what each thruster pushes

    def begin(self) -> None:
        self.place = self.rng.normal(0.0, 1.0, (self.n, 3))
        self.speed = np.zeros((self.n, 3))

    def observe(self) -> Floats:
        return np.concatenate([self.place, self.speed], 1)

    def advance(self, actions: Ints) -> Floats:
        push = 0.08 * (actions - 1) @ self.axes
        self.speed = 0.95 * self.speed + push + self.rng.normal(0.0, 0.01, (self.n, 3))
        self.place = self.place + 0.3 * self.speed + 0.02 * np.sin(3.0 * self.place)
        return -(self.place**2).sum(1) - 0.02 * np.abs(actions - 1).sum(1)

    def _against(self, of_place: float, of_speed: float, least: float) -> Ints:
        wanted = -(of_place * self.place + of_speed * self.speed) @ self.axes.T
        return (np.sign(np.where(np.abs(wanted) > least, wanted, 0.0)) + 1).astype(int)

    def rule(self) -> Ints:
        """Thrusters that push against place and speed."""
        return self._against(1.0, 2.0, 0.6)

    def log(self) -> Ints:
        return self.mixed(self._against(0.5, 0.6, 0.8), 0.4)


class Campaigns(Task):
    """Advertising of six products from one purse; who sees it often gets tired of it."""

    nvec, horizon, episodes = [5] * 6, 40, 600

    def begin(self) -> None:
        shape = self.n, 6
        self.tired = np.zeros(shape)
        self.value = self.rng.uniform(0.5, 2.0, shape)
        self.habit = self.rng.uniform(0.5, 2.5, shape)
        self.purse = np.full(self.n, 60.0)

    def observe(self) -> Floats:
        rest = self.purse / 60.0, np.full(self.n, self.t / 40.0)
        return np.concatenate([self.tired, self.value, np.stack(rest, 1)], 1)

    def advance(self, actions: Ints) -> Floats:
        costs = 0.5 * actions.sum(1)
        bought = np.where((costs <= self.purse)[:, None], actions, 0)
        self.purse = self.purse - 0.5 * bought.sum(1)
        seen = np.sqrt(bought) * np.exp(-self.tired)
        crowd = np.maximum((bought > 0).sum(1) - 3, 0)
        sales = (self.value * seen).sum(1) - 0.3 * crowd
        self.tired = 0.9 * self.tired + 0.12 * bought
        return self.rng.poisson(np.maximum(sales, 0.0)).astype(float)

    def rule(self) -> Ints:
        """Spends by value, less where people are tired."""
        return np.clip(np.round(1.3 * self.value * np.exp(-self.tired)), 0, 4).astype(int)

    def log(self) -> Ints:
        noise = self.rng.normal(0.0, 0.7, self.habit.shape)
        return self.mixed(np.clip(np.round(self.habit + noise), 0, 4).astype(int), 0.15)


FRESH_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task for task in (Irrigation, Radio, Platform, Campaigns)
}
