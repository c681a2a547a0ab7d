"""Behavior policies that are rules with random choices: of dispatch, slate and cone."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_envs.cone import GRID as CONE_GRID
from spin_envs.dispatch import DEADLINES, GRID, SPEED
from spin_envs.slate import CATEGORIES, ITEMS_A_PLACE, item_qualities, rank_factors
from spin_envs.tasks import BenchmarkTask

MEDIUM_NOISE = 0.3  # share of random choices
MIXED_NOISE = 0.9  # share of random moves
OUT_OF_REACH = 1000.0  # cost of an order that closes before its courier arrives


class ScriptedPolicy:
    """Acts by a rule, each episode with its own stream of random numbers.

    Args:
        task: dispatch, slate or cone, with its size.
        level: one of `scripted_levels`.
    """

    def __init__(self, task: BenchmarkTask, level: str) -> None:
        self._rule = f"{task.task}_{level}"
        n = task.number
        slots, choices = {
            "dispatch": (n, n + 1),
            "slate": (n, ITEMS_A_PLACE * n),
            "cone": (2 * n, 2),
        }[task.task]
        self.nvec = np.full(slots, choices, dtype=np.int64)
        self.record: dict[str, Any] = {"algorithm": f"rule {self._rule}", "rule": self._rule}

    def act(
        self, observations: NDArray[np.float32], streams: Sequence[np.random.Generator]
    ) -> NDArray[np.int64]:
        """Returns actions `(B, N)` for observations `(B, obs)`, one stream a row."""
        rule = _RULES[self._rule]
        rows = zip(observations.astype(np.float64), streams, strict=True)
        return np.stack([rule(x, len(self.nvec), rng) for x, rng in rows])

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns actions `(B, N)`, with new random numbers."""
        return self.act(observations, np.random.default_rng().spawn(len(observations)))

    def digest(self) -> str:
        """Returns a SHA-256 of the rules' source code."""
        return hashlib.sha256(inspect.getsource(sys.modules[__name__]).encode()).hexdigest()


def scripted_levels(task: BenchmarkTask) -> list[str]:
    """Returns the levels of behavior for which a task has a rule, e.g. `["expert", "medium"]`."""
    rules = (rule.split("_") for rule in _RULES)
    return [level for name, level in rules if name == task.task]


def _steps_to_orders(x: NDArray[np.float64], n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the steps from couriers to orders `(N, N)` and how long orders are open `(N,)`."""
    couriers = np.rint(x[: 2 * n].reshape(n, 2) * (GRID - 1))
    orders = x[2 * n :].reshape(n, 3)
    cells = np.rint(orders[:, :2] * (GRID - 1))
    distances = np.abs(couriers[:, None] - cells).sum(-1)
    return np.maximum(np.ceil(distances / SPEED), 1), np.rint(orders[:, 2] * DEADLINES[1])


def _dispatch_expert(x: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The assignment with the fewest steps to orders that can be reached; ties at random."""
    from scipy.optimize import linear_sum_assignment

    steps, left = _steps_to_orders(x, n)
    # The noise decides among assignments of equally many steps, as it adds up to less than one.
    noise = rng.random((n, n)) / (2 * n)
    _, orders = linear_sum_assignment(np.where(steps <= left, steps, OUT_OF_REACH) + noise)
    return np.asarray(orders, dtype=np.int64)


def _dispatch_medium(x: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each courier its nearest order, ties at random, or by chance any order, or none."""
    steps, _ = _steps_to_orders(x, n)
    nearest = (steps + 0.5 * rng.random((n, n))).argmin(1)
    return np.where(rng.random(n) < MEDIUM_NOISE, rng.integers(n + 1, size=n), nearest)


def _slate_expert(x: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The page that pays most, in a random order."""
    items = np.arange(ITEMS_A_PLACE * n)
    values = x[items % CATEGORIES] * item_qualities(len(items)) * rank_factors(items, n)
    best = np.argsort(-values, kind="stable")[:n]
    return rng.permutation(best)


def _slate_medium(x: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each place an item by the user's interest in it, whatever the others show."""
    items = np.arange(ITEMS_A_PLACE * n)
    values = x[items % CATEGORIES] * item_qualities(len(items))
    chosen = rng.choice(items, size=n, p=values / values.sum())
    return np.where(rng.random(n) < MEDIUM_NOISE, rng.integers(len(items), size=n), chosen)


def _cone_mixed(x: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random neighboring cell nine times of ten, else up wherever that leads to the goal.

    The second is the best without pits, and does not see them. Bits are those that the change of
    the position needs: none push against an edge, and no up is given together with a down.
    """
    n_dimensions, last = n // 2, CONE_GRID - 1
    offset = np.ones(n_dimensions, dtype=np.int64)
    if rng.random() < MIXED_NOISE:
        # The middle one of the 3^D offsets is to stay.
        k = int(rng.integers(3**n_dimensions - 1))
        k += k >= 3**n_dimensions // 2
        offset = k // 3 ** np.arange(n_dimensions) % 3 - 1
    move = np.clip(x + offset, 0, last) - x
    return np.stack([move > 0, move < 0], axis=1).ravel().astype(np.int64)


_RULES = {
    "cone_mixed": _cone_mixed,
    "dispatch_expert": _dispatch_expert,
    "dispatch_medium": _dispatch_medium,
    "slate_expert": _slate_expert,
    "slate_medium": _slate_medium,
}
