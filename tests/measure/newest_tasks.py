"""Eleven tasks that were written after critics of afterstates, as a test of all that decides.

Kinds that the others lack: slots of unlike sizes, a reward at the very end, two conventions in one
log, goods that arrive later, few and long episodes with large rewards, rewards of rare jackpots,
sixteen slots, ends that can be foreseen, a budget, a log of hardly any chance, and parts that are
put together in order. Units are their own.
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


class Swarm(Task):
    """Sixteen boats on a line keep apart and cover what drifts along it."""

    nvec, horizon, episodes = [3] * 16, 40, 300

    def begin(self) -> None:
        self.at = self.rng.uniform(0.0, 1.0, (self.n, 16))
        self.fish = self.rng.uniform(0.0, 1.0, (self.n, 3))
        self.heading = self.rng.choice([-0.03, 0.03], (self.n, 3))

    def observe(self) -> Floats:
        return np.concatenate([self.at, self.fish, self.heading * 30.0], 1)

    def advance(self, actions: Ints) -> Floats:
        self.at = np.clip(self.at + 0.05 * (actions - 1), 0.0, 1.0)
        turns = self.rng.random(self.fish.shape) < 0.05
        self.heading = np.where(turns, -self.heading, self.heading)
        self.fish = (self.fish + self.heading) % 1.0
        gaps = np.abs(self.at[:, :, None] - self.at[:, None]) + np.eye(16)
        near = np.exp(-((np.abs(self.at[:, :, None] - self.fish[:, None]) / 0.06) ** 2))
        caught = 1.0 - np.exp(-near.sum(1))
        fuel = 0.02 * (actions != 1).sum(1)
        return caught.sum(1) - 0.1 * (gaps < 0.03).sum((1, 2)) - fuel

    def rule(self) -> Ints:
        """To the nearest fish, if it is near."""
        to = self.fish[:, None] - self.at[:, :, None]
        nearest = np.take_along_axis(to, np.abs(to).argmin(2)[..., None], 2)[..., 0]
        return np.where(np.abs(nearest) < 0.2, np.sign(nearest) * (np.abs(nearest) > 0.03), 0) + 1

    def log(self) -> Ints:
        return self.mixed(self.rule().astype(int), 0.5)


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


class Auctions(Task):
    """Six bids of five levels a day from one budget; what others bid is noise."""

    nvec, horizon, episodes = [5] * 6, 20, 800

    def begin(self) -> None:
        self.budget = np.full(self.n, 60.0)
        self.quality = self.rng.uniform(0.2, 1.0, (self.n, 6))

    def observe(self) -> Floats:
        left = np.stack([self.budget / 60.0, np.full(self.n, self.t / 20.0)], 1)
        return np.concatenate([self.quality, left], 1)

    def advance(self, actions: Ints) -> Floats:
        wins = actions > self.rng.exponential(1.5, (self.n, 6))
        costs = np.where(wins, 0.7 * actions, 0.0)
        total = costs.sum(1, keepdims=True)
        share = np.minimum(1.0, self.budget[:, None] / np.maximum(total, 1e-9))
        self.budget = np.maximum(self.budget - total[:, 0], 0.0)
        sold = self.rng.random((self.n, 6)) < self.quality * 0.6
        self.quality = self.rng.uniform(0.2, 1.0, (self.n, 6))
        return 4.0 * (wins * share * sold).sum(1)

    def rule(self) -> Ints:
        """More for what is good, a little at a time."""
        return np.select([self.quality > 0.8, self.quality > 0.6], [3, 2], 0)

    def log(self) -> Ints:
        noisy = self.quality + self.rng.normal(0.0, 0.2, self.quality.shape)
        return self.mixed(np.clip(np.round(4.0 * noisy), 0, 4).astype(int), 0.2)


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


class Assembly(Task):
    """Five robots put six parts together in order; two on one part get in each other's way."""

    nvec, horizon, episodes = [7] * 5, 30, 600

    def begin(self) -> None:
        self.done = np.zeros((self.n, 6))
        self.skill = self.rng.uniform(0.1, 0.4, (self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.done, self.skill * 2.5], 1)

    def advance(self, actions: Ints) -> Floats:
        rows = np.arange(self.n)[:, None]
        work = np.zeros((self.n, 7))
        crowd = np.zeros((self.n, 7))
        np.add.at(work, (rows, actions), self.skill)
        np.add.at(crowd, (rows, actions), 1.0)
        # A part can be worked on once the one two before it is done.
        is_open = np.ones((self.n, 6), bool)
        is_open[:, 2:] = self.done[:, :-2] >= 1.0
        pace = np.where(crowd[:, 1:] <= 2.0, 1.0, 0.4)
        before = (self.done >= 1.0).sum(1)
        self.done = np.minimum(self.done + is_open * work[:, 1:] * pace, 1.0)
        parts = (self.done >= 1.0).sum(1) - before
        wear = 0.05 * (actions > 0).sum(1)
        return parts + 3.0 * (self.done >= 1.0).all(1) - wear

    def fails(self) -> Ints:
        return (self.done >= 1.0).all(1)

    def rule(self) -> Ints:
        """Two on the first open part, two on the next, one rests."""
        left = np.where(self.done < 1.0, np.arange(6), 99)
        order = np.sort(left, 1)
        first, second = order[:, 0] % 99, np.where(order[:, 1] == 99, order[:, 0], order[:, 1]) % 99
        best = (-self.skill).argsort(1)
        actions = np.zeros((self.n, 5), int)
        rows = np.arange(self.n)
        for place, part in enumerate([first, first, second, second]):
            actions[rows, best[:, place]] = part + 1
        return actions

    def log(self) -> Ints:
        is_open = np.ones((self.n, 6), bool)
        is_open[:, 2:] = self.done[:, :-2] >= 1.0
        liked = self.rng.random((self.n, 5, 6)) + (is_open & (self.done < 1.0))[:, None]
        rests = self.rng.random((self.n, 5)) < 0.2
        return self.mixed(np.where(rests, 0, liked.argmax(2) + 1), 0.2)


NEWEST_TASKS: dict[str, type[Task]] = {
    task.__name__.lower(): task
    for task in (
        *(Menu, Dials, Conventions, Orders, Furnaces, Jackpots),
        *(Swarm, Tanks, Auctions, Schedules, Assembly),
    )
}
