"""A grid of many dimensions with pits, where every dimension is steered by two bits (CoNE)."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.action_grid import check_integer, is_integer
from spin_envs.base import MultiDiscreteEnv, StepResult, fill_cell
from spin_envs.tasks import (
    CONE_DIMENSIONS,
    CONE_EPISODE_STEPS,
    CONE_INTERIOR,
    DEFAULT_DIMENSIONS,
    DEFAULT_PITS,
    MAX_PLACEMENT,
)

GRID = CONE_INTERIOR + 2  # cells of each dimension
GOAL_REWARD = 10.0
_RANDOM_EPISODES = 10_000  # of which the random score is the mean

_CELL, _PIT, _HERE = (235, 235, 235), (60, 60, 60), (200, 40, 40)
_GOAL, _GOAL_ELSEWHERE = (90, 180, 90), (205, 230, 205)


def count_pits(dimensions: int, pits: float) -> int:
    """Returns the number of pits.

    Args:
        dimensions: of the grid.
        pits: their number (an integer), or their share of the interior cells (a float), which is
            rounded to a whole number of pits.

    Raises:
        ValueError: a number or share of that kind does not exist.
    """
    interior: int = CONE_INTERIOR**dimensions
    if is_integer(pits) and 0 <= pits <= interior:
        return int(pits)
    if isinstance(pits, float | np.floating) and 0.0 <= pits <= 1.0:
        return round(float(pits) * interior)
    raise ValueError(
        "Expected pits to be a share of the interior cells (a float from 0.0 to 1.0) or their "
        f"number (an integer from 0 to {interior}), got {pits!r}."
    )


def place_pits(dimensions: int, pits: float, placement: int) -> NDArray[np.bool_]:
    """Returns which interior cells are pits, `(3,) * dimensions`.

    The first pit is in the middle of the grid; the others are a uniformly random subset, drawn
    from seed `placement`. More pits of the same placement include the fewer ones.
    """
    n, middle = count_pits(dimensions, pits), CONE_INTERIOR**dimensions // 2
    is_pit = np.zeros(CONE_INTERIOR**dimensions, dtype=np.bool_)
    if n:
        others = np.random.default_rng(placement).permutation(len(is_pit) - 1)[: n - 1]
        is_pit[middle] = True
        is_pit[others + (others >= middle)] = True
    return is_pit.reshape((CONE_INTERIOR,) * dimensions)


class ConeRules:
    """What positions pay and where episodes end; arguments as `ConeEnv` takes them."""

    def __init__(self, dimensions: int, pits: float, placement: int) -> None:
        check_integer("dimensions", dimensions, *CONE_DIMENSIONS)
        check_integer("placement", placement, 0, MAX_PLACEMENT)
        self.is_pit = place_pits(dimensions, pits, placement)  # of interior cells
        self.pit_reward = -GOAL_REWARD * (GRID - 1) * math.sqrt(dimensions)

    def move(self, positions: NDArray[np.int64], actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where actions `(B, 2 D)` lead from positions `(B, D)`."""
        moves = actions[:, 0::2] - actions[:, 1::2]
        return np.clip(positions + moves, 0, GRID - 1)

    def outcomes(
        self, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the rewards for reaching positions `(B, D)`, and whether episodes end there."""
        distances = np.sqrt(((GRID - 1 - positions) ** 2).sum(1))
        is_inside = ((positions > 0) & (positions < GRID - 1)).all(1)
        falls = np.zeros(len(positions), dtype=np.bool_)
        falls[is_inside] = self.is_pit[tuple(positions[is_inside].T - 1)]
        arrives = distances == 0.0
        rewards = np.where(arrives, GOAL_REWARD, np.where(falls, self.pit_reward, -distances))
        return rewards, arrives | falls


class ConeEnv(MultiDiscreteEnv):
    """The combinatorial navigation environment (CoNE) of BraVE (Landers et al., 2025).

    A position in a grid of 5 cells a dimension moves from the origin to the opposite corner.
    Each dimension has two bits, up and down, `MultiDiscrete([2] * 2 * dimensions)`: up alone moves
    it by 1, down alone by -1, both or neither not at all; the grid's edges stop it. The observation
    is the position, float32 `(dimensions,)`. A step pays minus the Euclidean distance to the goal.
    Reaching the goal pays 10 and terminates; a pit pays -40 times the root of the number of
    dimensions and terminates. `gymnasium.make` truncates episodes after 100 steps. Nothing is
    random but where the pits are, which is drawn once, from `placement`.

    Pits are interior cells (1 to 3 in every dimension): the middle one and a uniformly random
    subset of the others. A path along the edges always exists.

    Frames show the first two dimensions, with the others as they are: pits are dark, the position
    is red, the goal is green (pale while another dimension is not there yet).

    Args:
        dimensions: their number D (2 to 11).
        pits: share of the 3^D interior cells, a float from 0.0 to 1.0, or the number of pits, an
            integer: 1.0 is all of them, 1 is one.
        placement: seed of the pits' places.
        render_mode: `None` or `"rgb_array"`; `gymnasium.make` takes `"human"`, too.
        size: width and height of rendered frames in pixels (at least 32).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        dimensions: int = DEFAULT_DIMENSIONS,
        pits: float = DEFAULT_PITS,
        placement: int = 0,
        render_mode: str | None = None,
        size: int = 400,
    ) -> None:
        check_integer("size", size, 32, 4096)
        self._rules = ConeRules(dimensions, pits, placement)
        super().__init__(
            Box(0.0, GRID - 1.0, (dimensions,), np.float32),
            np.full(2 * dimensions, 2, dtype=np.int64),
            render_mode,
            render_fps=4,
        )
        self._size = size
        self._position = np.zeros((1, dimensions), dtype=np.int64)

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        self._position = np.zeros_like(self._position)
        out[:] = 0.0
        return {}

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        self._position = self._rules.move(self._position, action[None])
        out[:] = self._position[0]
        rewards, ends = self._rules.outcomes(self._position)
        return float(rewards[0]), bool(ends[0]), False, {}

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.full((self._size, self._size, 3), 255, np.uint8)
        cells = np.repeat(self._position, GRID * GRID, axis=0)
        cells[:, :2] = np.stack(np.divmod(np.arange(GRID * GRID), GRID), axis=1)
        rewards, _ = self._rules.outcomes(cells)
        for (x, y), reward in zip(cells[:, :2].tolist(), rewards, strict=True):
            color = _PIT if reward == self._rules.pit_reward else _CELL
            if x == y == GRID - 1:
                color = _GOAL if reward == GOAL_REWARD else _GOAL_ELSEWHERE
            fill_cell(frame, GRID, x, y, 0.9, color)
        x, y = self._position[0, :2].tolist()
        fill_cell(frame, GRID, x, y, 0.45, _HERE)
        return frame


def reference_returns(
    dimensions: int = DEFAULT_DIMENSIONS, pits: float = DEFAULT_PITS, placement: int = 0
) -> tuple[float, float]:
    """Returns the mean return of uniformly random actions, and the largest return that exists.

    The first is a mean over 10,000 simulated episodes of at most 100 steps, the second is exact.
    Both are computed once in a process; 8 dimensions take a second, 11 half a minute and 1.5 GB.

    Raises:
        ValueError: an argument that `ConeEnv` refuses.
    """
    # By the number of pits, because to a cache 1 (pit) and 1.0 (all) are the same.
    return _reference_returns(dimensions, count_pits(dimensions, pits), placement)


@functools.lru_cache(maxsize=256)
def _reference_returns(dimensions: int, pits: int, placement: int) -> tuple[float, float]:
    rules = ConeRules(dimensions, pits, placement)
    return _random_return(rules), optimal_return(rules)


def optimal_return(rules: ConeRules) -> float:
    """Returns the largest return of any actions, by value iteration from the goal backwards.

    After n iterations, values are the largest returns of at most n steps. A step reaches any of
    the 3^D cells around, so that an iteration takes the maximum of three along each dimension.
    """
    dimensions = rules.is_pit.ndim
    interior = (slice(1, -1),) * dimensions
    squares = (GRID - 1 - np.arange(GRID, dtype=np.float64)) ** 2
    rewards = np.zeros((GRID,) * dimensions)
    for axis in range(dimensions):
        rewards += squares.reshape([-1 if i == axis else 1 for i in range(dimensions)])
    np.sqrt(rewards, out=rewards)
    np.negative(rewards, out=rewards)
    best = np.full_like(rewards, -np.inf)
    # Without pits, 4 steps along the diagonal. No more than that, and 1 less for each further step
    # (any cell but the goal costs that), is what longer paths return.
    diagonal = GOAL_REWARD - (GRID - 1) * (GRID - 2) / 2 * math.sqrt(dimensions)
    steps, origin = 0, (0,) * dimensions
    while best[origin] < diagonal - (steps + 1 - (GRID - 1)):
        best += rewards
        best[(GRID - 1,) * dimensions] = GOAL_REWARD
        best[interior][rules.is_pit] = rules.pit_reward
        _take_best_around(best)
        steps += 1
    return float(best[origin])


def _take_best_around(values: NDArray[np.float64]) -> None:
    """Replaces each cell's value by the largest of the cells around it, itself included."""
    for axis in range(values.ndim):
        lines = np.moveaxis(values, axis, 0)
        pairs = np.maximum(lines[:-1], lines[1:])
        lines[0], lines[-1] = pairs[0], pairs[-1]
        np.maximum(pairs[:-1], pairs[1:], out=lines[1:-1])


def _random_return(rules: ConeRules) -> float:
    """Returns the mean return of uniformly random actions."""
    rng, dimensions = np.random.default_rng(0), rules.is_pit.ndim
    positions = np.zeros((_RANDOM_EPISODES, dimensions), dtype=np.int64)
    total = 0.0
    for _ in range(CONE_EPISODE_STEPS):
        actions = rng.integers(2, size=(len(positions), 2 * dimensions))
        positions = rules.move(positions, actions)
        rewards, ends = rules.outcomes(positions)
        total += float(rewards.sum())
        positions = positions[~ends]
    return total / _RANDOM_EPISODES
