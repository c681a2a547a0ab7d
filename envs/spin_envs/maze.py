"""A point pushed around two walls by binary actuators."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.action_grid import check_integer
from spin_envs.base import MultiDiscreteEnv, StepResult, fill
from spin_envs.tasks import DEFAULT_ACTUATORS, MAZE_EPISODE_STEPS

MIN_ACTUATORS, MAX_ACTUATORS = 2, 20

START = (0.25, 0.10)
# Rectangles (x from, x to, y from, y to), edges included.
GOAL = (0.25, 0.30, 0.45, 0.50)
WALLS = ((0.0, 0.50, 0.25, 0.30), (0.50, 0.55, 0.25, 0.80))

SUB_MOVES = 4
SUB_MOVE_LENGTH = 0.045
NOISE_PROBABILITY = 0.1
NOISE_SCALE = 1.415  # just over sqrt(2), so that noise moves no farther than an action can
STEP_REWARD = -0.05
GOAL_REWARD = 100.0


def actuator_directions(actuators: int) -> NDArray[np.float64]:
    """Returns each actuator's displacement, `(actuators, 2)`.

    They have equal angles from (1, 0) on, rounded to three decimals as in the benchmark; the
    longest sum of a subset has length 1.
    """
    angles = 2 * np.pi * np.arange(actuators) / actuators
    directions = np.round(np.stack([np.cos(angles), np.sin(angles)], axis=1), 3)
    # Bit i of a joint action says whether actuator i is on.
    on = (np.arange(2**actuators)[:, None] >> np.arange(actuators)) & 1
    longest: float = np.linalg.norm(on @ directions, axis=1).max()
    return directions / longest


def _inside(x: float, y: float, box: tuple[float, float, float, float]) -> bool:
    return box[0] <= x <= box[1] and box[2] <= y <= box[3]


class MazeEnv(MultiDiscreteEnv):
    """The maze of the discretized control benchmark (Beeson, Ireland, Montana, 2024).

    The observation is the position (x, y) in the unit square, float32 `(2,)`. An action switches
    each actuator off (0) or on (1); the directions of active ones add up (`actuator_directions`). A
    step is four sub-moves of 0.045 times that sum, each replaced with probability 0.1 by noise,
    uniform in `[0, 1]^2` / 1.415 times 0.045. A sub-move into a wall or out of the square is not
    made and ends the step; so does reaching the goal. A step costs 0.05; the goal pays 100 and
    terminates. The 150th step neither moves nor pays and is truncated: an episode without the goal
    returns -7.45.

    Unlike the published environment, the last observation is the position at the goal, not the one
    before the last sub-move. This does not affect learning.

    Args:
        actuators: number of actuators (2 to 20).
        render_mode: `None` or `"rgb_array"`; `gymnasium.make` also accepts `"human"`.
        size: width and height of rendered frames in pixels (at least 32).
    """

    def __init__(
        self, actuators: int = DEFAULT_ACTUATORS, render_mode: str | None = None, size: int = 400
    ) -> None:
        check_integer("actuators", actuators, MIN_ACTUATORS, MAX_ACTUATORS)
        check_integer("size", size, 32, 4096)
        super().__init__(
            Box(0.0, 1.0, (2,), np.float32),
            np.full(actuators, 2, dtype=np.int64),
            render_mode,
            render_fps=10,
        )
        self._directions = actuator_directions(actuators)
        self._size = size
        self._position = START
        self._path = [START]

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        self._position = START
        self._path = [START]
        out[:] = START
        return {}

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        truncated = self._elapsed == MAZE_EPISODE_STEPS
        reward, reached = 0.0, False
        if not truncated:
            reached = self._move(action)
            reward = STEP_REWARD + (GOAL_REWARD if reached else 0.0)
        out[:] = self._position
        return reward, reached, truncated, {}

    def _move(self, action: NDArray[np.int64]) -> bool:
        """Makes the sub-moves of one step; returns whether the goal was reached."""
        pushed = (action @ self._directions).tolist()
        # Drawn for all sub-moves at once: whether it is noise, and which.
        for chance, *noise in self.np_random.random((SUB_MOVES, 3)).tolist():
            if chance < NOISE_PROBABILITY:
                dx, dy = noise[0] / NOISE_SCALE, noise[1] / NOISE_SCALE
            else:
                dx, dy = pushed
            x = self._position[0] + SUB_MOVE_LENGTH * dx
            y = self._position[1] + SUB_MOVE_LENGTH * dy
            if not _inside(x, y, (0.0, 1.0, 0.0, 1.0)) or any(_inside(x, y, w) for w in WALLS):
                return False
            self._position = (x, y)
            self._path.append(self._position)
            if _inside(x, y, GOAL):
                return True
        return False

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.full((self._size, self._size, 3), 255, np.uint8)
        for box in WALLS:
            fill(frame, box, (60, 60, 60))
        fill(frame, GOAL, (120, 200, 120))
        for (x0, y0), (x1, y1) in zip(self._path, self._path[1:], strict=False):
            n = 2 + int(self._size * max(abs(x1 - x0), abs(y1 - y0)))
            for x, y in zip(np.linspace(x0, x1, n), np.linspace(y0, y1, n), strict=True):
                fill(frame, (x - 0.003, x + 0.003, y - 0.003, y + 0.003), (120, 160, 230))
        (x, y), radius = self._position, max(0.015, 1.5 / self._size)
        fill(frame, (x - radius, x + radius, y - radius, y + radius), (200, 40, 40))
        return frame
