"""Tasks of one decision an episode. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


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


TASKS = by_name(Bundles, Radio, Prices, Turbines, Jobs, Sensors, Menu)
