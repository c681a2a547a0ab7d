"""Fourteen tasks that were written as a test of all eleven rules of trust, after the last of them.

Poles that must not fall, dirt that is to be cleaned up, stations of a production line, lessons for
a pupil who forgets, and fires that spread. Poles and fires led to a model of states where the task
ends episodes; landers and kilns were written to test that one. Wells, staff and rails came next, as
a test of what yields to a search that the model prefers, and of bold ones where things stand still;
wells and rails led to what is asked of a search that leads where the data have not been, and to
choices among samples. Forks and winches, boilers and rooms were written to test these two. Units
are their own.
"""

from __future__ import annotations

import numpy as np

from tests.measure.switch_tasks import Floats, Ints, Task


class Poles(Task):
    """Four poles on carts that springs join in a row; the first one that falls ends the episode."""

    nvec, horizon, episodes = [3] * 4, 100, 400

    def begin(self) -> None:
        self.at = self.rng.uniform(-0.1, 0.1, (self.n, 4))
        self.speed = np.zeros((self.n, 4))
        self.angle = self.rng.uniform(-0.05, 0.05, (self.n, 4))
        self.turn = self.rng.uniform(-0.05, 0.05, (self.n, 4))

    def observe(self) -> Floats:
        return np.concatenate([self.at, self.speed, 5.0 * self.angle, self.turn], 1)

    def advance(self, actions: Ints) -> Floats:
        push = 4.0 * (actions - 1) + self.rng.normal(0.0, 0.5, actions.shape)
        joined = np.zeros_like(push)
        pull = 3.0 * np.diff(self.at, axis=1)
        joined[:, :-1] += pull
        joined[:, 1:] -= pull
        force = push + joined - 1.0 * self.at
        self.speed += 0.05 * force
        self.turn += 0.05 * (9.0 * np.sin(self.angle) - 1.5 * force * np.cos(self.angle))
        self.at += 0.05 * self.speed
        self.angle += 0.05 * self.turn
        return 1.0 - 0.1 * np.abs(self.at).sum(1) - 0.02 * (actions != 1).sum(1)

    def fails(self) -> Ints:
        return (np.abs(self.angle) > 0.4).any(1) | (np.abs(self.at) > 2.5).any(1)

    def _push(self, of_turn: float) -> Ints:
        wish = self.angle + of_turn * self.turn
        return 1 + (wish > 0.02).astype(int) - (wish < -0.02)

    def rule(self) -> Ints:
        """Each cart drives under its own pole."""
        return self._push(0.3)

    def log(self) -> Ints:
        return self.mixed(self._push(0.1), 0.15)


class Cleaning(Task):
    """Four robots clean a floor of five by five; it ends when all is clean, and time costs."""

    nvec, horizon, episodes = [5] * 4, 60, 500  # stay, or one step in four directions
    steps = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def begin(self) -> None:
        self.dirt = (self.rng.random((self.n, 25)) < 0.4).astype(float)
        self.at = self.rng.integers(0, 5, (self.n, 4, 2))

    def observe(self) -> Floats:
        cells = np.eye(25)[self.at @ [5, 1]].reshape(self.n, -1)
        return np.concatenate([self.dirt, cells], 1)

    def advance(self, actions: Ints) -> Floats:
        self.at = np.clip(self.at + self.steps[actions], 0, 4)
        here = np.eye(25)[self.at @ [5, 1]]
        cleaned = self.dirt * here.max(1)
        self.dirt = self.dirt - cleaned
        meets = (here.sum(1) > 1).sum(1)
        return cleaned.sum(1) - 0.3 - 0.1 * meets

    def fails(self) -> Ints:
        return self.dirt.sum(1) == 0

    def _to_nearest(self) -> Ints:
        cells = np.stack(np.divmod(np.arange(25), 5), 1)
        far = np.abs(self.at[:, :, None] - cells).sum(-1) + 99.0 * (self.dirt[:, None] == 0)
        off = cells[far.argmin(2)] - self.at
        first = np.abs(off[..., 0]) >= np.abs(off[..., 1])
        along_x = np.where(off[..., 0] > 0, 1, 2)
        along_y = np.where(off[..., 1] > 0, 3, 4)
        return np.where((off == 0).all(2), 0, np.where(first, along_x, along_y))

    def rule(self) -> Ints:
        """Each goes to the dirt that is nearest to it."""
        return self._to_nearest()

    def log(self) -> Ints:
        return self.mixed(self._to_nearest(), 0.4)


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


class Lessons(Task):
    """Five exercises of six topics a lesson; what a pupil learns fades, and builds on the rest."""

    nvec, horizon, episodes = [6] * 5, 40, 500

    def begin(self) -> None:
        self.knows = self.rng.uniform(0.0, 0.4, (self.n, 6))
        self.mood = np.ones(self.n)

    def observe(self) -> Floats:
        return np.concatenate([self.knows, self.mood[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        counts = np.eye(6)[actions].sum(1)
        basis = np.concatenate([np.ones((self.n, 1)), self.knows[:, :-1]], 1)
        learned = 0.15 * basis * self.mood[:, None] * np.sqrt(counts) * (1.0 - self.knows)
        bored = (counts * (self.knows > 0.8)).sum(1) + np.maximum(counts.max(1) - 3.0, 0.0)
        lost = (counts * (basis < 0.3)).sum(1)
        self.mood = np.clip(self.mood + 0.05 - 0.04 * bored - 0.04 * lost, 0.2, 1.2)
        self.knows = np.clip(0.985 * self.knows + learned, 0.0, 1.0)
        return self.knows.sum(1) / 6.0 + self.rng.normal(0.0, 0.1, self.n)

    def rule(self) -> Ints:
        """The five topics with the most to learn that their basis allows."""
        basis = np.concatenate([np.ones((self.n, 1)), self.knows[:, :-1]], 1)
        gains = basis * (1.0 - self.knows)
        return np.argsort(-gains, 1)[:, :5]

    def log(self) -> Ints:
        noise = self.rng.gumbel(0.0, 1.0, (self.n, 5, 6))
        return (2.0 * (1.0 - self.knows)[:, None] + noise).argmax(2)


class Fires(Task):
    """Five crews go to one of nine districts each; fires grow there, spread, and end by rain."""

    nvec, horizon, episodes = [9] * 5, 40, 500

    def begin(self) -> None:
        self.fire = np.where(self.rng.random((self.n, 9)) < 0.4, self.rng.random((self.n, 9)), 0.0)
        self.at = self.rng.integers(0, 9, (self.n, 5))
        self.wind = self.rng.integers(0, 2, self.n)

    def observe(self) -> Floats:
        crews = np.eye(9)[self.at].sum(1)
        return np.concatenate([self.fire, crews, self.at, self.wind[:, None]], 1)

    def advance(self, actions: Ints) -> Floats:
        far = np.abs(actions // 3 - self.at // 3) + np.abs(actions % 3 - self.at % 3)
        strength = np.where(far == 0, 0.35, np.where(far == 1, 0.25, 0.1))
        fought = np.zeros((self.n, 9))
        for crew in range(5):
            fought += strength[:, crew, None] * np.eye(9)[actions[:, crew]]
        self.at = actions.copy()
        grid = self.fire.reshape(self.n, 3, 3)
        down, right = np.zeros_like(grid), np.zeros_like(grid)
        down[:, 1:], right[:, :, 1:] = grid[:, :-1], grid[:, :, :-1]
        carried = np.where(self.wind[:, None, None] == 1, down, right).reshape(self.n, 9)
        sparks = (self.rng.random((self.n, 9)) < 0.3 * carried) * 0.2
        self.fire = np.clip(1.12 * self.fire + sparks - fought, 0.0, 2.0)
        return -self.fire.sum(1) - 0.05 * far.sum(1)

    def fails(self) -> Ints:
        return self.fire.sum(1) == 0

    def rule(self) -> Ints:
        """The five largest fires, one crew each."""
        return np.argsort(-self.fire, 1)[:, :5]

    def log(self) -> Ints:
        noise = self.rng.gumbel(0.0, 1.0, (self.n, 5, 9))
        far = np.abs(np.arange(9) // 3 - (self.at // 3)[..., None])
        far = far + np.abs(np.arange(9) % 3 - (self.at % 3)[..., None])
        return (2.0 * self.fire[:, None] - 0.5 * far + noise).argmax(2)


class Landers(Task):
    """Four engines bring a body down; it ends on the ground, well if it is slow and upright."""

    nvec, horizon, episodes = [3] * 4, 80, 400
    pushes = np.array([[0.0, 0.5, 0.25], [0.0, 0.5, -0.25], [0.35, 0.1, 0.1], [-0.35, 0.1, -0.1]])

    def begin(self) -> None:
        self.at = np.stack([self.rng.uniform(-3, 3, self.n), self.rng.uniform(5, 8, self.n)], 1)
        self.speed = self.rng.normal(0.0, 0.3, (self.n, 2))
        self.angle = self.rng.normal(0.0, 0.1, self.n)
        self.turn = np.zeros(self.n)

    def observe(self) -> Floats:
        return np.column_stack([self.at / 3.0, self.speed, 3.0 * self.angle, 3.0 * self.turn])

    def advance(self, actions: Ints) -> Floats:
        force = 0.5 * actions @ self.pushes + self.rng.normal(0.0, 0.03, (self.n, 3))
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        self.speed[:, 0] += 0.3 * (cos * force[:, 0] - sin * force[:, 1])
        self.speed[:, 1] += 0.3 * (sin * force[:, 0] + cos * force[:, 1] - 0.5)
        self.turn += 0.3 * force[:, 2]
        self.at += 0.3 * self.speed
        self.angle += 0.3 * self.turn
        hit = np.linalg.norm(self.speed, axis=1) + 3.0 * np.abs(self.angle)
        landed = np.where(self.at[:, 1] < 0.0, 20.0 - 15.0 * hit, 0.0)
        return landed - 0.05 * np.abs(self.at[:, 0]) - 0.02 * actions.sum(1) - 0.05

    def fails(self) -> Ints:
        return (self.at[:, 1] < 0.0) | (np.abs(self.at[:, 0]) > 6.0) | (np.abs(self.angle) > 1.5)

    def _steer(self, fall: float, calm: float) -> Ints:
        up = 0.5 + 1.5 * (-fall - 0.1 * self.at[:, 1] - self.speed[:, 1])
        around = -0.4 * self.angle - calm * self.turn
        side = -0.05 * self.at[:, 0] - 0.2 * self.speed[:, 0]
        wish = np.stack([up + 2.0 * around, up - 2.0 * around, 2.0 * side, -2.0 * side], 1)
        return np.clip(np.round(2.0 * wish), 0, 2).astype(int)

    def rule(self) -> Ints:
        """Slower near the ground, against what turns it."""
        return self._steer(0.2, 0.8)

    def log(self) -> Ints:
        return self.mixed(self._steer(0.5, 0.4), 0.2)


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


class Rails(Task):
    """Four cranes on one rail fetch boxes and can't pass; new boxes come for old ones."""

    nvec, horizon, episodes = [4] * 4, 60, 400  # left, stay, right, or lift

    def begin(self) -> None:
        self.at = np.tile(np.array([1, 4, 7, 10]), (self.n, 1))
        self.boxes = np.eye(12)[self.rng.integers(0, 12, (self.n, 5))].max(1)

    def observe(self) -> Floats:
        return np.concatenate([self.boxes, np.eye(12)[self.at].reshape(self.n, -1)], 1)

    def advance(self, actions: Ints) -> Floats:
        rows, blocked = np.arange(self.n), np.zeros(self.n)
        lifted = np.zeros(self.n)
        for crane in range(4):
            step = np.select([actions[:, crane] == 0, actions[:, crane] == 2], [-1, 1], 0)
            to = np.clip(self.at[:, crane] + step, 0, 11)
            others = np.delete(self.at, crane, axis=1)
            is_free = (others != to[:, None]).all(1)
            blocked += ~is_free
            self.at[:, crane] = np.where(is_free, to, self.at[:, crane])
            here = self.at[:, crane]
            lifts = (actions[:, crane] == 3) & (self.boxes[rows, here] > 0)
            self.boxes[rows, here] -= lifts
            new = self.rng.integers(0, 12, self.n)
            self.boxes[rows, new] = np.maximum(self.boxes[rows, new], lifts)
            lifted += lifts
        return lifted - 0.1 * blocked - 0.05 * (actions != 1).sum(1)

    def _to_nearest(self, noise: float) -> Ints:
        cells = np.arange(12) + self.rng.normal(0.0, noise, (self.n, 4, 12))
        far = np.abs(self.at[:, :, None] - cells) + 99.0 * (self.boxes[:, None] == 0)
        off = far.argmin(2) - self.at
        return np.where(off == 0, 3, 1 + np.sign(off))

    def rule(self) -> Ints:
        """Each goes to the box that is nearest to it."""
        return self._to_nearest(0.0)

    def log(self) -> Ints:
        return self.mixed(self._to_nearest(2.0), 0.3)


class Forks(Task):
    """Four forklifts in an aisle of three lanes fetch pallets on the right and bring them left."""

    nvec, horizon, episodes = [5] * 4, 60, 400  # stay, left, right, up, down

    def begin(self) -> None:
        self.x, self.y = np.tile([0, 0, 0, 1], (self.n, 1)), np.tile([0, 1, 2, 0], (self.n, 1))
        self.loaded = np.zeros((self.n, 4), bool)
        self.lane = self.rng.integers(0, 3, (self.n, 4))

    def observe(self) -> Floats:
        lanes = np.eye(3)[self.lane].reshape(self.n, -1)
        return np.concatenate([self.x / 5.0, self.y / 2.0, self.loaded, lanes], 1)

    def advance(self, actions: Ints) -> Floats:
        rewards = -0.02 * (actions > 0).sum(1)
        for i in range(4):
            moves = actions[:, i]
            x = np.clip(self.x[:, i] + (moves == 2) - (moves == 1), 0, 5)
            y = np.clip(self.y[:, i] + (moves == 4) - (moves == 3), 0, 2)
            meets = (self.x == x[:, None]) & (self.y == y[:, None])
            meets[:, i] = False
            is_free = ~meets.any(1)
            self.x[:, i] = np.where(is_free, x, self.x[:, i])
            self.y[:, i] = np.where(is_free, y, self.y[:, i])
            end = np.where(self.loaded[:, i], 0, 5)
            there = (self.x[:, i] == end) & (self.y[:, i] == self.lane[:, i])
            rewards = rewards + there * np.where(self.loaded[:, i], 1.0, 0.3)
            self.loaded[:, i] ^= there
            new = self.rng.integers(0, 3, self.n)
            self.lane[:, i] = np.where(there, new, self.lane[:, i])
        return rewards

    def rule(self) -> Ints:
        """Each drives straight on, and changes lanes at the end."""
        ahead = np.where(self.loaded, 1, 2)
        at_end = self.x == np.where(self.loaded, 0, 5)
        aside = np.where(self.lane > self.y, 4, 3)
        return np.where(at_end, aside, ahead)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.35)


class Winches(Task):
    """Five winches haul a sledge, which does not move unless they pull hard enough together."""

    nvec, horizon, episodes = [4] * 5, 60, 300

    def begin(self) -> None:
        self.slope = self.rng.uniform(0.0, 1.0, self.n)
        self.heat = np.zeros((self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.slope[:, None], self.heat], 1)

    def advance(self, actions: Ints) -> Floats:
        works = self.heat < 1.0
        pull = (actions * works).sum(1)
        needed = 5.0 + 4.0 * self.slope
        moved = np.clip(0.25 * (pull - needed), 0.0, 1.0)
        slips = self.rng.normal(0.0, 0.1, self.n) * (moved > 0.0)
        self.slope = np.clip(self.slope + slips, 0.0, 1.0)
        warmer = np.where(actions == 3, 0.3, -0.1) * (moved > 0.0)[:, None]
        self.heat = np.clip(self.heat + warmer, 0.0, 1.0)
        return moved - 0.02 * actions.sum(1)

    def rule(self) -> Ints:
        """All pull with medium force, and with more up a slope where they are cool."""
        return np.where((self.slope[:, None] > 0.6) & (self.heat < 0.5), 3, 2)

    def log(self) -> Ints:
        hard = self.rng.random((self.n, 1)) < 0.5
        return self.mixed(np.where(hard, 2, 1) * np.ones((1, 5), int), 0.3)


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


FINAL_TASKS: dict[str, type[Task]] = {
    "poles": Poles,
    "cleaning": Cleaning,
    "line": Line,
    "lessons": Lessons,
    "fires": Fires,
    "landers": Landers,
    "kilns": Kilns,
    "wells": Wells,
    "staff": Staff,
    "rails": Rails,
    "forks": Forks,
    "winches": Winches,
    "boilers": Boilers,
    "rooms": Rooms,
}
