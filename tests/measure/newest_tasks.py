"""Six tasks that were written after critics of afterstates, as a test of all that decides.

Kinds that the others lack: slots of unlike sizes, a reward at the very end, two conventions in one
log, goods that arrive later, few and long episodes with large rewards, rewards of rare jackpots.
Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


class Menu(Task):
    """Seven courses with two to eight dishes for a guest; few evenings were logged."""

    nvec, horizon, episodes = [2, 8, 3, 5, 2, 6, 4], 1, 3000

    def __init__(self) -> None:
        fixed = np.random.default_rng(51)
        self.likes = [fixed.normal(0.0, 0.6, (4, k)) for k in self.nvec]
        self.together = [
            fixed.normal(0.0, 0.8, (j, k))
            for j, k in zip(self.nvec[:-1], self.nvec[1:], strict=True)
        ]

    def begin(self) -> None:
        self.guest = self.rng.normal(0.0, 1.0, (self.n, 4))

    def observe(self) -> Floats:
        return self.guest

    def _worth(self, slot: int) -> Floats:
        return self.guest @ self.likes[slot]

    def advance(self, actions: Ints) -> Floats:
        rows = np.arange(self.n)
        alone = sum(self._worth(i)[rows, actions[:, i]] for i in range(7))
        pairs = sum(t[actions[:, i], actions[:, i + 1]] for i, t in enumerate(self.together))
        return alone + pairs + self.rng.normal(0.0, 1.0, self.n)

    def rule(self) -> Ints:
        """The course that the guest likes best, whatever goes with it."""
        return np.stack([self._worth(i).argmax(1) for i in range(7)], 1)

    def log(self) -> Ints:
        noise = self.rng.gumbel(0.0, 1.0, (self.n, 7, 8))
        scores = [0.8 * self._worth(i) + noise[:, i, :k] for i, k in enumerate(self.nvec)]
        return np.stack([s.argmax(1) for s in scores], 1)


class Dials(Task):
    """Six dials are turned until all show the same hidden pattern; only the end pays."""

    nvec, horizon, episodes = [3] * 6, 25, 800

    def begin(self) -> None:
        self.shown = self.rng.integers(0, 8, (self.n, 6))
        self.wanted = self.rng.integers(0, 8, (self.n, 6))

    def observe(self) -> Floats:
        angle = 2.0 * np.pi * (self.shown - self.wanted) / 8.0
        return np.concatenate([np.cos(angle), np.sin(angle)], 1)

    def advance(self, actions: Ints) -> Floats:
        turns = actions - 1
        # A dial that turns drags its neighbor along, one time in four.
        drags = (self.rng.random((self.n, 6)) < 0.25) * turns
        self.shown = (self.shown + turns + np.roll(drags, 1, 1)) % 8
        return 10.0 * self.fails()

    def fails(self) -> Ints:
        return (self.shown == self.wanted).all(1)

    def rule(self) -> Ints:
        """The shorter way round."""
        off = (self.wanted - self.shown + 4) % 8 - 4
        return np.sign(off) + 1

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.35)


class Conventions(Task):
    """Six cars pass each other left or right, fast or slow; half of the drivers keep left."""

    nvec, horizon, episodes = [4] * 6, 40, 500  # left or right, slow or fast

    def begin(self) -> None:
        self.left = self.rng.random(self.n) < 0.5
        self.last = np.zeros((self.n, 6), int)
        self.fog = self.rng.uniform(0.0, 1.0, self.n)

    def observe(self) -> Floats:
        sides = np.eye(2)[self.last % 2].reshape(self.n, -1)
        return np.concatenate([sides, self.fog[:, None], np.full((self.n, 1), self.t / 40.0)], 1)

    def advance(self, actions: Ints) -> Floats:
        side, is_fast = actions % 2, actions // 2
        meets = side != np.roll(side, 1, 1)
        crashes = meets & (self.rng.random((self.n, 6)) < 0.1 + 0.5 * is_fast * self.fog[:, None])
        self.last = actions.copy()
        self.fog = np.clip(self.fog + self.rng.normal(0.0, 0.1, self.n), 0.0, 1.0)
        return (0.3 + 0.7 * is_fast).sum(1) - 4.0 * crashes.sum(1)

    def rule(self) -> Ints:
        """All keep the side that most were on; fast."""
        most = (self.last % 2).mean(1) > 0.5
        return np.repeat(most[:, None] + 2, 6, 1)

    def log(self) -> Ints:
        side = np.repeat(self.left[:, None] * 1, 6, 1)
        errs = self.rng.random((self.n, 6)) < 0.1
        is_fast = self.rng.random((self.n, 6)) < 0.8 - 0.5 * self.fog[:, None]
        return np.where(errs, 1 - side, side) + 2 * is_fast


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


NEWEST_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task for task in (Menu, Dials, Conventions, Orders, Furnaces, Jackpots)
}
