"""Couriers on a grid, each of which chooses an open order: two on one order waste one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.action_grid import check_integer
from spin_envs.base import MultiDiscreteEnv, StepResult, fill_cell
from spin_envs.layout import NONE, ActionLayout
from spin_envs.tasks import COORDINATION_EPISODE_STEPS, DEFAULT_SLOTS

GRID = 10  # cells in a row
SPEED = 3  # cells that a courier moves in a step
DEADLINES = (4, 8)  # steps that a new order stays open, from and to


def _layout(n: int) -> ActionLayout:
    """Couriers at cells choose orders at cells, or stay, a choice without features."""
    orders = [[2 * n + 3 * k + part for part in range(3)] for k in range(n)]
    return ActionLayout(
        shared_choices=True,
        slot_columns=tuple((2 * i, 2 * i + 1) for i in range(n)),
        choice_columns=tuple(tuple(columns) for columns in [*orders, [NONE] * 3]),
        choice_features=tuple((float(k == n),) for k in range(n + 1)),
        compared=((0, 0), (1, 1)),
    )


class DispatchEnv(MultiDiscreteEnv):
    """Couriers serve orders that open at random cells of a 10 x 10 grid.

    There are as many open orders as couriers (N). Each courier chooses one of them (0 to N - 1) or
    stays (N), and moves up to 3 cells towards it, first along x. One that reaches its order serves
    it. Where several choose the same order, the one that is nearest (then the first) goes, and the
    others lose the step. Each order served pays 1 / N. An order that was served, or whose deadline
    has passed (4 to 8 steps after it opened), is replaced by a new one. Episodes are truncated
    after 50 steps.

    The observation, float32 `(5 N,)`, holds the couriers' cells (x, y), then for each order its
    cell (x, y) and the steps left, all divided by their largest values.

    The info's `collisions` is the number of couriers that lost the step to another one.

    Args:
        couriers: their number N (2 to 100).
        render_mode: `None` or `"rgb_array"`; `gymnasium.make` takes `"human"`, too.
        size: width and height of rendered frames in pixels (at least 32).
    """

    def __init__(
        self, couriers: int = DEFAULT_SLOTS, render_mode: str | None = None, size: int = 400
    ) -> None:
        check_integer("couriers", couriers, 2, 100)
        check_integer("size", size, 32, 4096)
        super().__init__(
            Box(0.0, 1.0, (5 * couriers,), np.float32),
            np.full(couriers, couriers + 1, dtype=np.int64),
            render_mode,
            render_fps=4,
        )
        self.layout = _layout(couriers)
        self._n = couriers
        self._size = size
        # Lists: for tens of couriers faster than arrays.
        self._couriers: list[list[int]] = []  # x, y
        self._orders: list[list[int]] = []  # x, y, steps left

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        self._couriers = self.np_random.integers(GRID, size=(self._n, 2)).tolist()
        self._orders = self._new_orders(self._n)
        self._observe(out)
        return {}

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        goes: dict[int, tuple[int, int]] = {}  # by order: distance and courier
        idle = 0
        for courier, order in enumerate(action.tolist()):
            if order == self._n:
                idle += 1
                continue
            (x, y), (to_x, to_y, _) = self._couriers[courier], self._orders[order]
            distance = abs(to_x - x) + abs(to_y - y)
            if order not in goes or distance < goes[order][0]:
                goes[order] = (distance, courier)
        for order, (distance, courier) in goes.items():
            place, target = self._couriers[courier], self._orders[order]
            left = SPEED
            for axis in (0, 1):
                way = max(-left, min(left, target[axis] - place[axis]))
                place[axis] += way
                left -= abs(way)
            if distance <= SPEED:
                target[2] = 0
        served = sum(distance <= SPEED for distance, _ in goes.values())
        for target in self._orders:
            target[2] -= 1
        closed = [order for order, target in enumerate(self._orders) if target[2] <= 0]
        for order, new in zip(closed, self._new_orders(len(closed)), strict=True):
            self._orders[order] = new
        self._observe(out)
        truncated = self._elapsed >= COORDINATION_EPISODE_STEPS
        info = {"collisions": self._n - idle - len(goes)}
        return served / self._n, False, truncated, info

    def _new_orders(self, n: int) -> list[list[int]]:
        first, last = DEADLINES
        # One number each, for cell and deadline: drawing is what takes time.
        drawn = self.np_random.integers(GRID * GRID * (last - first + 1), size=n).tolist()
        return [[k % GRID, k // GRID % GRID, first + k // (GRID * GRID)] for k in drawn]

    def _observe(self, out: NDArray[np.float32]) -> None:
        n = self._n
        out[: 2 * n] = [c / (GRID - 1) for cell in self._couriers for c in cell]
        out[2 * n :] = [
            part
            for x, y, left in self._orders
            for part in (x / (GRID - 1), y / (GRID - 1), left / DEADLINES[1])
        ]

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.full((self._size, self._size, 3), 255, np.uint8)
        for x, y, left in self._orders:
            urgency = 1 - left / DEADLINES[1]
            fill_cell(frame, GRID, x, y, 0.9, (120, round(200 - 120 * urgency), 120))
        for x, y in self._couriers:
            fill_cell(frame, GRID, x, y, 0.45, (200, 40, 40))
        return frame
