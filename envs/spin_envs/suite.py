"""DeepMind Control Suite tasks with each actuator discretized."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from spin_envs.action_grid import ActionGrid
from spin_envs.errors import MissingDependencyError, UnknownTaskError

# Gymnasium's checker warns about infinite bounds; these are as wide as float32 allows.
LIMIT = float(np.finfo(np.float32).max)

# Domains that draw the model itself (stiffness, damping) from the seed when a task is loaded.
RANDOM_MODEL_DOMAINS = ("lqr",)


def _import_suite() -> ModuleType:
    """Imports dm_control when an environment is made: it is slow and optional."""
    try:
        with warnings.catch_warnings():
            # Without a display, glfw warns before dm_control falls back to a headless renderer.
            warnings.simplefilter("ignore")
            from dm_control import suite
    except ImportError as error:
        raise MissingDependencyError(
            "Control suite environments need dm_control, which could not be imported "
            f"({error}). Install it with `pip install 'dm_control<1.1' 'mujoco>=3.17,<4'` on "
            "Python 3.11 or 3.12 (its dependency labmaze has no wheel for 3.13)."
        ) from error
    return suite  # type: ignore[no-any-return]


def _load_task(domain: str, task: str, **kwargs: Any) -> Any:
    """Loads a task without the notice that dm_control's own models are in an older dialect."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_dialect_notice)
    try:
        return _import_suite().load(domain, task, **kwargs)
    finally:
        logger.removeFilter(_is_not_dialect_notice)


def _is_not_dialect_notice(record: logging.LogRecord) -> bool:
    return "settotalmass" not in record.getMessage()


class DiscretizedSuiteEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.integer[Any]]]):
    """A control suite task whose action is one choice of `bins` values per actuator.

    Choice `k` of `bins` sets the actuator to `linspace(-1, 1, bins)[k]`, whatever its control
    range. Observations are float32, dm_control's arrays in its own key order, flattened.
    Rewards are dm_control's. The suite's time limit (1,000 steps) is reported as `truncated`.
    `reset(seed=s)` starts the same episode as `suite.load(..., task_kwargs={"random": s})`.

    Args:
        domain: the suite's domain, e.g. `"cheetah"`.
        task: the domain's task, e.g. `"run"`.
        bins: number of values of each actuator: one for all, or one per actuator (2 to 1,001).
        render_mode: `None` or `"rgb_array"`.
        width: width of rendered frames in pixels.
        height: height of rendered frames in pixels.
        camera_id: index or name of the camera that renders.

    Raises:
        MissingDependencyError: dm_control cannot be imported.
        UnknownTaskError: the suite has no such task.
        ValueError: `bins` or `render_mode` is not one of those above.
    """

    # Gymnasium declares it on instances, and each instance here has its own frame rate.
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        domain: str,
        task: str,
        bins: int | Sequence[int] = 3,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"Expected render_mode None or 'rgb_array', got {render_mode!r}.")
        suite = _import_suite()
        if (domain, task) not in suite.ALL_TASKS:
            names = [f"{d}-{t}" for d, t in suite.ALL_TASKS]
            near = difflib.get_close_matches(f"{domain}-{task}", names, n=3) or names
            raise UnknownTaskError(
                f"The control suite has no task {domain}-{task}. Near matches: {', '.join(near)}."
            )
        self._domain, self._task = domain, task
        self._env = _load_task(domain, task)
        n = self._env.action_spec().shape[0]
        self._grid = ActionGrid(-np.ones(n), np.ones(n), bins)
        size = sum(int(np.prod(s.shape)) for s in self._env.observation_spec().values())
        self.observation_space = Box(-LIMIT, LIMIT, (size,), np.float32)
        self.action_space = MultiDiscrete(self._grid.nvec)
        self.render_mode = render_mode
        self._camera = {"width": width, "height": height, "camera_id": camera_id}
        fps = round(1 / self._env.control_timestep())
        self.metadata = {**type(self).metadata, "render_fps": fps}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode; `seed` (if given) reseeds the task's random numbers."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed(seed % 2**32)
        return self._flatten(self._env.reset().observation), {}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Applies one choice per actuator, shape `(N,)`, for one control step.

        Raises:
            InvalidActionError: `action` is not in the action space.
            gymnasium.error.ResetNeeded: no episode is in progress.
        """
        timestep = self._env.step(self._grid.to_continuous(action))
        if timestep.first():
            raise gymnasium.error.ResetNeeded(
                "No episode is in progress. Call reset() before the first step and after an "
                "episode is terminated or truncated."
            )
        over = timestep.last()
        terminated = over and timestep.discount == 0.0
        observation = self._flatten(timestep.observation)
        return observation, float(timestep.reward), terminated, over and not terminated, {}

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Returns a frame of shape `(height, width, 3)`, or None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs render_mode='rgb_array' in gymnasium.make.")
            return None
        frame: NDArray[np.uint8] = self._env.physics.render(**self._camera)
        return frame

    def close(self) -> None:
        """Frees the simulation."""
        self._env.close()

    def _seed(self, seed: int) -> None:
        if self._domain in RANDOM_MODEL_DOMAINS:
            self._env.close()
            self._env = _load_task(self._domain, self._task, task_kwargs={"random": seed})
        else:
            self._env.task.random.seed(seed)

    def _flatten(self, observation: dict[str, Any]) -> NDArray[np.float32]:
        return np.concatenate([np.ravel(v) for v in observation.values()]).astype(np.float32)
