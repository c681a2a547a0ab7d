"""Seven tasks that were written as a test of trust; epidemic and arm led to rules.

An epidemic that measures bring down later, contents that neighbors need not store twice, robots
that stand in each other's way, and playlists of which a listener tires. Later an arm among things
that stop it, dams in one river, and pests that come to fields. Units are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


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


class Aisles(Task):
    """Five robots fetch goods on a grid of six by six; who would meet stands still, and pays."""

    nvec, horizon, episodes = [5] * 5, 50, 600  # stay, or one step in four directions
    steps = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def begin(self) -> None:
        cells = np.stack([self.rng.permutation(36)[:5] for _ in range(self.n)])
        self.at = np.stack([cells // 6, cells % 6], 2)
        self.goal = self.rng.integers(0, 6, (self.n, 5, 2))

    def observe(self) -> Floats:
        both = np.concatenate([self.at, self.goal, self.goal - self.at], 2)
        return both.reshape(self.n, -1) / 5.0

    def advance(self, actions: Ints) -> Floats:
        wanted = np.clip(self.at + self.steps[actions], 0, 5)
        cell, old = wanted @ [6, 1], self.at @ [6, 1]
        others = ~np.eye(5, dtype=bool)
        meets = (cell[:, :, None] == cell[:, None]) | (cell[:, :, None] == old[:, None])
        meets = (meets & others).any(2) & (cell != old)
        self.at = np.where(meets[..., None], self.at, wanted)
        fetched = (self.at == self.goal).all(2)
        new = self.rng.integers(0, 6, self.goal.shape)
        self.goal = np.where(fetched[..., None], new, self.goal)
        return fetched.sum(1) - 0.3 * meets.sum(1)

    def rule(self) -> Ints:
        """Along the longer way first, whoever stands there."""
        off = self.goal - self.at
        first = np.abs(off[..., 0]) >= np.abs(off[..., 1])
        along_x = np.where(off[..., 0] > 0, 1, 2)
        along_y = np.where(off[..., 1] > 0, 3, 4)
        return np.where((off == 0).all(2), 0, np.where(first, along_x, along_y))

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.25)


class Playlists(Task):
    """Five songs of eight genres a time; a listener tires of genres, and of hard changes."""

    nvec, horizon, episodes = [8] * 5, 20, 800

    def begin(self) -> None:
        self.taste = self.rng.normal(0.0, 1.0, (self.n, 8))
        self.tired = np.zeros((self.n, 8))
        self.patience = np.ones(self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.taste, self.tired, self.patience[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        heard = np.eye(8)[actions].sum(1)
        liked = np.take_along_axis(self.taste - self.tired, actions, 1).sum(1)
        distance = np.abs(np.diff(actions, axis=1))
        hard = np.minimum(distance, 8 - distance).sum(1)
        self.tired = 0.7 * self.tired + 0.3 * heard
        returned = (liked - 0.4 * hard) * self.patience
        self.patience = np.clip(self.patience + 0.02 * (liked - 0.4 * hard), 0.1, 1.5)
        return returned + self.rng.normal(0.0, 1.0, self.n)

    def rule(self) -> Ints:
        """What the listener likes best now, five times."""
        return np.repeat((self.taste - self.tired).argmax(1)[:, None], 5, 1)

    def log(self) -> Ints:
        noise = self.rng.gumbel(0.0, 1.0, (self.n, 5, 8))
        return (1.0 * (self.taste - 0.5 * self.tired)[:, None] + noise).argmax(2)


class Arm(Task):
    """Four joints turn a little; what would hit a post does not move. A goal that is met moves."""

    nvec, horizon, episodes = [3] * 4, 80, 400
    posts = np.array([[0.3, 1.1], [-1.2, 0.2], [0.4, -1.3]])

    def begin(self) -> None:
        self.angles = self.rng.uniform(-0.4, 0.4, (self.n, 4))
        self.goal = self._goals()

    def _goals(self) -> Floats:
        way, far = self.rng.uniform(-np.pi, np.pi, self.n), self.rng.uniform(0.8, 1.8, self.n)
        return np.stack([far * np.cos(way), far * np.sin(way)], 1)

    @staticmethod
    def _ends(angles: Floats) -> Floats:
        """Returns where each link ends, `(..., 4, 2)`."""
        whole = angles.cumsum(-1)
        return 0.5 * np.stack([np.cos(whole), np.sin(whole)], -1).cumsum(-2)

    def observe(self) -> Floats:
        end = self._ends(self.angles)[:, -1]
        return np.concatenate([self.angles, end, self.goal, self.goal - end], 1)

    def advance(self, actions: Ints) -> Floats:
        turned = self.angles + 0.15 * (actions - 1)
        ends = self._ends(turned)
        middles = ends - 0.5 * np.diff(ends, axis=1, prepend=0.0)
        points = np.concatenate([ends, middles], 1)
        far = np.linalg.norm(points[:, :, None] - self.posts, axis=-1)
        hits = (far < 0.15).any((1, 2)) | (np.abs(turned) > 2.5).any(1)
        self.angles = np.where(hits[:, None], self.angles, turned)
        met = np.linalg.norm(self._ends(self.angles)[:, -1] - self.goal, axis=1) < 0.2
        self.goal = np.where(met[:, None], self._goals(), self.goal)
        return met.astype(float)

    def rule(self) -> Ints:
        """Each joint turns to where its end comes closer to the goal, as if alone."""
        steps = 0.15 * np.array([-1.0, 0.0, 1.0])[:, None, None] * np.eye(4)
        ends = self._ends(self.angles[:, None, None] + steps)[..., -1, :]
        return np.linalg.norm(ends - self.goal[:, None, None], axis=-1).argmin(1)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.3)


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


HELD_OUT_TASKS: dict[str, type[Task]] = {
    "epidemic": Epidemic,
    "caches": Caches,
    "aisles": Aisles,
    "playlists": Playlists,
    "arm": Arm,
    "dams": Dams,
    "fields": Fields,
}
