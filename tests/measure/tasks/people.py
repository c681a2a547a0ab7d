"""Tasks of customers, patients, pupils and markets. Units are their own."""

from __future__ import annotations

import numpy as np

from tests.measure.tasks.base import Floats, Ints, Task, by_name


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


class Messages(Task):
    """Eight channels write to a customer, who gets tired of them, unseen, and may leave."""

    nvec, horizon, episodes = [3] * 8, 40, 1000
    appeal = np.random.default_rng(31).uniform(0.2, 1.0, (8, 3))

    def begin(self) -> None:
        self.interest = self.rng.normal(0.0, 1.0, (self.n, 3))
        self.tired = np.zeros(self.n)
        self.last = np.zeros((self.n, 8), int)
        self.leaves = np.zeros(self.n, bool)

    def observe(self) -> Floats:
        return np.concatenate([self.interest, self.last / 2.0], 1)

    def advance(self, actions: Ints) -> Floats:
        liked = 1.0 / (1.0 + np.exp(-(self.interest @ self.appeal.T - 0.5)))
        clicks = self.rng.random((self.n, 8)) < 0.25 * liked * actions
        self.tired = 0.8 * self.tired + 0.2 * actions.sum(1)
        self.leaves = self.rng.random(self.n) < np.clip(0.015 * (self.tired - 3.0), 0.0, 0.5)
        self.interest = 0.9 * self.interest + self.rng.normal(0.0, 0.4, self.interest.shape)
        self.last = actions.copy()
        return clicks.sum(1) - 0.05 * actions.sum(1) - 10.0 * self.leaves

    def fails(self) -> Ints:
        return self.leaves

    def rule(self) -> Ints:
        """The four channels that are liked most, once."""
        liked = self.interest @ self.appeal.T
        return (liked.argsort(1).argsort(1) >= 4).astype(int)

    def log(self) -> Ints:
        eager = self.rng.uniform(-1.0, 1.0, (self.n, 1))
        wanted = 0.6 * (self.interest @ self.appeal.T) + eager
        noisy = wanted + self.rng.normal(0.0, 0.7, wanted.shape)
        return np.clip(np.round(noisy + 0.5), 0, 2).astype(int)


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


TASKS = by_name(Campaigns, Clinic, Trader, Messages, Auctions, Playlists, Lessons)
