"""DeepMind Control Suite tasks with each actuator discretized."""

from __future__ import annotations

import difflib
import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.action_grid import ActionGrid
from spin_envs.base import MultiDiscreteEnv, StepResult
from spin_envs.errors import (
    MissingDependencyError,
    UnknownTaskError,
    explained_graphics_errors,
    graphics_error,
)
from spin_envs.rewards import DOMAINS, REWARDS
from spin_envs.tasks import DEFAULT_BINS, EPISODE_STEPS


def _import_suite() -> ModuleType:
    """Imports dm_control, which is slow and optional, when an environment is made."""
    try:
        with warnings.catch_warnings():
            # Without a display, glfw warns before dm_control falls back to a headless renderer.
            warnings.simplefilter("ignore")
            from dm_control import suite
    except (ImportError, AttributeError) as error:
        backend = os.environ.get("MUJOCO_GL")
        if backend and not isinstance(error, ModuleNotFoundError):
            raise graphics_error(f"MUJOCO_GL={backend}: {error}", "dm_control") from error
        raise MissingDependencyError(
            "Control suite environments need dm_control, which could not be imported "
            f"({error}). Install it with `pip install 'dm_control<1.1' 'mujoco>=3.17,<4'` on "
            "Python 3.11 or 3.12 (its dependency labmaze has no wheel for 3.13)."
        ) from error
    return suite  # type: ignore[no-any-return]


def _is_not_dialect_notice(record: logging.LogRecord) -> bool:
    """Whether this is another notice than that about the dialect of dm_control's own models."""
    return "settotalmass" not in record.getMessage()


class DiscretizedSuiteEnv(MultiDiscreteEnv):
    """A control suite task whose action is one choice of `bins` values per actuator.

    Choice `k` of `bins` sets the actuator to `linspace(-1, 1, bins)[k]`, whatever its control
    range. Observations are dm_control's arrays in its key order, flat float32; rewards are
    dm_control's. The time limit (1,000 steps, also for `lqr`, which has none in dm_control) is
    reported as `truncated`. `reset(seed=s)` starts the same episode as `suite.load(...,
    task_kwargs={"random": s})`.

    Args:
        domain: e.g. `"cheetah"`.
        task: e.g. `"run"`.
        bins: number of values per actuator: one for all, or one each (2 to 1,001).
        render_mode: `None` or `"rgb_array"`; `gymnasium.make` also accepts `"human"`.
        width: of rendered frames in pixels.
        height: of rendered frames in pixels.
        camera_id: index or name of the rendering camera; -1 is the free camera.
        reward: name in `spin_envs.rewards`, of another reward than the task's.

    Raises:
        MissingDependencyError: dm_control cannot be imported, or (when rendering) there is no
            graphics back-end.
        UnknownTaskError: the suite has no such task.
        ValueError: `bins`, `render_mode` or `reward` is invalid.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        bins: int | Sequence[int] = DEFAULT_BINS,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
        reward: str | None = None,
    ) -> None:
        suite = _import_suite()
        if (domain, task) not in suite.ALL_TASKS:
            names = [f"{d}-{t}" for d, t in suite.ALL_TASKS]
            near = difflib.get_close_matches(f"{domain}-{task}", names, n=3) or names
            raise UnknownTaskError(
                f"The control suite has no task {domain}-{task}. Near matches: {', '.join(near)}."
            )
        if reward is not None and DOMAINS.get(reward) != domain:
            known = [name for name, of in DOMAINS.items() if of == domain] or "none"
            raise ValueError(f"Expected a reward of {domain} ({known}), got {reward!r}.")
        self._reward = None if reward is None else REWARDS[reward]
        self._domain, self._task_name = domain, task
        self._load()
        n = self._env.action_spec().shape[0]
        self._grid = ActionGrid(-np.ones(n), np.ones(n), bins)
        size = sum(int(np.prod(s.shape)) for s in self._env.observation_spec().values())
        super().__init__(
            Box(-np.inf, np.inf, (size,), np.float32),  # the suite states no bounds
            self._grid.nvec,
            render_mode,
            render_fps=round(1 / self._env.control_timestep()),
        )
        self._camera = {"width": width, "height": height, "camera_id": camera_id}

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        if seed is not None:
            if self._domain == "lqr":  # draws the model itself when a task is loaded
                self._env.close()
                self._load(task_kwargs={"random": seed % 2**32})
            else:
                self._env.task.random.seed(seed % 2**32)
        draws = (self._domain, self._task_name) == ("quadruped", "escape")
        what = "quadruped-escape, which draws its terrain at reset,"
        with explained_graphics_errors(what) if draws else nullcontext():
            self._write(self._env.reset().observation, out)
        return {}

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        physics, task = self._env.physics, self._env.task
        task.before_step(self._grid.values(action), physics)
        physics.step(self._sub_steps)
        task.after_step(physics)
        reward = float(task.get_reward(physics))
        self._write(task.get_observation(physics), out)
        if self._reward is not None:
            reward = float(self._reward(out))
        if self._elapsed >= EPISODE_STEPS:
            return reward, False, True, {}
        discount = task.get_termination(physics)  # None until the episode ends
        return reward, discount == 0.0, discount not in (None, 0.0), {}

    @staticmethod
    def _write(observation: dict[str, Any], out: NDArray[np.float32]) -> None:
        end = 0
        for value in observation.values():
            start, end = end, end + (value.size if isinstance(value, np.ndarray) else 1)
            out[start:end] = value.ravel() if isinstance(value, np.ndarray) else value

    def _frame(self) -> NDArray[np.uint8]:
        with explained_graphics_errors():
            frame: NDArray[np.uint8] = self._env.physics.render(**self._camera)
        return frame

    def close(self) -> None:
        self._env.close()

    def _load(self, **kwargs: Any) -> None:
        logger = logging.getLogger("absl")
        logger.addFilter(_is_not_dialect_notice)
        try:
            self._env = _import_suite().load(self._domain, self._task_name, **kwargs)
        finally:
            logger.removeFilter(_is_not_dialect_notice)
        self._sub_steps = round(self._env.control_timestep() / self._env.physics.timestep())
