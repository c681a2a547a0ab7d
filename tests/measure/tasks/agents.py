"""Tasks of several agents that meet. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


class Collectors(Task):
    """Six agents on a grid of 8 x 8 collect items; each pair in one cell costs 0.3."""

    nvec, horizon, episodes = [5] * 6, 50, 600
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def begin(self) -> None:
        self.agents = self.rng.integers(0, 8, (self.n, 6, 2))
        self.items = self.rng.integers(0, 8, (self.n, 8, 2))

    def observe(self) -> Floats:
        both = np.concatenate([self.agents, self.items], 1)
        return both.reshape(self.n, -1).astype(float)

    def advance(self, actions: Ints) -> Floats:
        self.agents = np.clip(self.agents + self.moves[actions], 0, 7)
        found = (self.agents[:, :, None] == self.items[:, None]).all(-1).any(1)
        pairs = (self.agents[:, :, None] == self.agents[:, None]).all(-1).sum((1, 2)) - 6
        new = self.rng.integers(0, 8, self.items.shape)
        self.items = np.where(found[..., None], new, self.items)
        return found.sum(1) - 0.3 * pairs / 2

    def rule(self) -> Ints:
        """Each goes to the nearest item. Agents that meet stay together."""
        distance = np.abs(self.agents[:, :, None] - self.items[:, None]).sum(-1)
        nearest = distance.argmin(2)[..., None]
        way = np.take_along_axis(self.items, nearest, 1) - self.agents
        along_x = np.where(way[..., 0] > 0, 1, 2)
        along_y = np.where(way[..., 1] > 0, 3, 4)
        longer = np.where(np.abs(way[..., 0]) >= np.abs(way[..., 1]), along_x, along_y)
        return np.where((way == 0).all(-1), 0, longer)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.5)


class Lanes(Task):
    """Eight vehicles pass a narrow road; half of the logged crews keep left, half right."""

    nvec, horizon, episodes = [4] * 8, 40, 400

    def begin(self) -> None:
        self.place = self.rng.uniform(-1.0, 1.0, (self.n, 8))  # across the road
        self.load = self.rng.uniform(0.0, 1.0, (self.n, 8))
        self.keeps_left = self.rng.random(self.n) < 0.5

    def observe(self) -> Floats:
        return np.concatenate([self.place, self.load], 1)

    def advance(self, actions: Ints) -> Floats:
        # Choices: stop, go straight, go and bear left, go and bear right.
        aim = np.array([0.0, 0.0, -0.5, 0.5])[actions]
        moves = actions > 0
        self.place = np.clip(self.place + aim + self.rng.normal(0.0, 0.1, self.place.shape), -1, 1)
        meets = np.zeros((self.n, 8), bool)
        for i in range(8):  # each meets the next one, which comes the other way
            j = (i + 1) % 8
            is_close = np.abs(self.place[:, i] + self.place[:, j]) < 0.35
            meets[:, i] |= is_close & moves[:, i] & moves[:, j]
        wins = (moves * (0.5 + self.load)).sum(1)
        self.load = np.clip(self.load + self.rng.normal(0.0, 0.1, self.load.shape), 0.0, 1.0)
        return wins - 4.0 * meets.sum(1)

    def _kept(self, left: Ints) -> Ints:
        wanted = np.where(left[:, None], -0.6, 0.6)
        off = wanted - self.place
        return np.where(off < -0.25, 2, np.where(off > 0.25, 3, 1))

    def rule(self) -> Ints:
        """All keep right."""
        return self._kept(np.zeros(self.n, bool))

    def log(self) -> Ints:
        stops = self.rng.random((self.n, 8)) < 0.2
        return self.mixed(np.where(stops, 0, self._kept(self.keeps_left)), 0.1)


class Skirmish(Task):
    """Five units each take cover or shoot at one of five enemies; the log shoots at any."""

    nvec, horizon, episodes = [6] * 5, 40, 800

    def __init__(self) -> None:
        fixed = np.random.default_rng(41)
        self.power = fixed.uniform(0.08, 0.16, 5)
        self.threat = fixed.uniform(0.05, 0.17, 5)

    def begin(self) -> None:
        self.health = self.rng.uniform(0.7, 1.0, (self.n, 5))
        self.enemies = self.rng.uniform(0.6, 1.0, (self.n, 5))

    def observe(self) -> Floats:
        return np.concatenate([self.health, self.enemies], 1)

    def advance(self, actions: Ints) -> Floats:
        rows, lives = np.arange(self.n)[:, None], self.health > 0.0
        hits = np.zeros((self.n, 6))
        shots = lives * self.power * (self.rng.random((self.n, 5)) < 0.8)
        np.add.at(hits, (rows, actions), shots)
        before = self.enemies.copy()
        self.enemies = np.maximum(self.enemies - hits[:, 1:], 0.0)
        target = (lives[:, None] * self.rng.random((self.n, 5, 5))).argmax(2)
        hurt = np.zeros((self.n, 5))
        np.add.at(hurt, (rows, target), self.threat * (before > 0.0))
        hurt = np.minimum(hurt * np.where(actions == 0, 0.4, 1.0), self.health)
        self.health = self.health - hurt
        won = (self.enemies == 0.0).all(1) & (before > 0.0).any(1)
        return (before - self.enemies).sum(1) - hurt.sum(1) + 5.0 * won

    def fails(self) -> Ints:
        return (self.health <= 0.0).all(1) | (self.enemies == 0.0).all(1)

    def rule(self) -> Ints:
        """All shoot at the one that threatens most for the health it has left."""
        worth = np.where(self.enemies > 0.0, self.threat / np.maximum(self.enemies, 0.05), -1.0)
        return np.repeat(worth.argmax(1)[:, None] + 1, 5, 1)

    def log(self) -> Ints:
        liked = self.rng.random((self.n, 5, 5)) + (self.enemies > 0.0)[:, None]
        covers = self.rng.random((self.n, 5)) < 0.15 + 0.3 * (self.health < 0.3)
        return self.mixed(np.where(covers, 0, liked.argmax(2) + 1), 0.1)


class Pads(Task):
    """Four agents on a grid of 5 x 5; they are paid once, when each stands on its pad."""

    nvec, horizon, episodes = [5] * 4, 40, 1500
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    pads = np.array([[0, 0], [0, 4], [4, 0], [4, 4]])

    def begin(self) -> None:
        self.places = self.rng.integers(0, 5, (self.n, 4, 2))

    def observe(self) -> Floats:
        return self.places.reshape(self.n, -1) / 2.0 - 1.0

    def advance(self, actions: Ints) -> Floats:
        self.places = np.clip(self.places + self.moves[actions], 0, 4)
        return np.where(self.fails(), 10.0, 0.0) - 0.1

    def fails(self) -> Ints:
        return (self.places == self.pads).all((1, 2))

    def rule(self) -> Ints:
        """Each goes to its pad and waits there."""
        way = self.pads - self.places
        along_x = np.where(way[..., 0] > 0, 1, 2)
        along_y = np.where(way[..., 1] > 0, 3, 4)
        there = np.where(way[..., 0] != 0, along_x, along_y)
        return np.where((way == 0).all(-1), 0, there)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.5)


class Trucks(Task):
    """Six trucks follow another one; close ones need less fuel, and one that touches crashes."""

    nvec, horizon, episodes = [5] * 6, 60, 400
    change = np.array([-1.0, -0.4, 0.0, 0.4, 1.0])

    def begin(self) -> None:
        self.gap = self.rng.uniform(3.0, 6.0, (self.n, 6))
        self.speed = self.rng.uniform(4.5, 5.5, (self.n, 7))  # the first is the one they follow

    def observe(self) -> Floats:
        return np.concatenate([self.gap / 3.0, self.speed / 5.0], 1)

    def advance(self, actions: Ints) -> Floats:
        first = self.speed[:, 0] + self.rng.normal(0.0, 0.25, self.n)
        rest = np.clip(self.speed[:, 1:] + self.change[actions], 0.0, 10.0)
        self.speed = np.concatenate([np.clip(first, 3.0, 8.0)[:, None], rest], 1)
        self.gap = self.gap + 0.5 * (self.speed[:, :-1] - self.speed[:, 1:])
        drag = 0.4 + 0.6 * np.clip(self.gap / 4.0, 0.0, 1.0)
        fuel = (drag * rest**2).sum(1) / 100.0 + 0.05 * np.abs(self.change[actions]).sum(1)
        far = 0.2 * np.maximum(self.gap - 8.0, 0.0).sum(1)
        return 2.5 - fuel - far - 20.0 * self.fails()

    def fails(self) -> Ints:
        return (self.gap < 0.0).any(1)

    def _keeps(self, gap: Floats) -> Ints:
        wanted = 0.4 * (self.gap - gap) + 0.9 * (self.speed[:, :-1] - self.speed[:, 1:])
        return np.abs(wanted[..., None] - self.change).argmin(-1)

    def rule(self) -> Ints:
        """Keeps a gap of 3."""
        return self._keeps(np.full((self.n, 6), 3.0))

    def log(self) -> Ints:
        return self.mixed(self._keeps(self.rng.uniform(2.0, 6.0, (self.n, 1))), 0.1)


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


TASKS = by_name(
    Collectors,
    Lanes,
    Skirmish,
    Pads,
    Trucks,
    Conventions,
    Swarm,
    Assembly,
    Aisles,
    Cleaning,
    Fires,
    Rails,
    Forks,
)
