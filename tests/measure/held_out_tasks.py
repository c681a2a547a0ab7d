"""Four tasks that were written as a test of trust; one of them, epidemic, led to a rule.

An epidemic that measures bring down later, contents that neighbors need not store twice, robots
that stand in each other's way, and playlists of which a listener tires. Units are their own.
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


HELD_OUT_TASKS: dict[str, type[Task]] = {
    "epidemic": Epidemic,
    "caches": Caches,
    "aisles": Aisles,
    "playlists": Playlists,
}
