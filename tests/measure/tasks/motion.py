"""Tasks of joints, engines and other drives. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


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


TASKS = by_name(Platform, Crane, Dials, Arm, Poles, Landers, Winches)
