"""Discretization of any Gymnasium task with continuous actions."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete, Space
from gymnasium.spaces.utils import flatdim, flatten, flatten_space
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from spin_envs.action_grid import ActionGrid, bounds_of
from spin_envs.base import MultiDiscreteEnv, StepResult, to_json_values
from spin_envs.errors import MissingDependencyError, explained_graphics_errors
from spin_envs.tasks import DEFAULT_BINS


class BoxGrid(ActionGrid):
    """A grid of actions over a `Box` of any shape; raises ValueError for infinite bounds."""

    def __init__(self, space: Space[Any], bins: int | Sequence[int]) -> None:
        if not isinstance(space, Box) or not np.isfinite(bounds_of(space)).all():
            raise ValueError(
                "Expected an environment with continuous actions (a Box space) of finite bounds, "
                f"got {space}. Bound it first, e.g. with gymnasium.wrappers.RescaleAction. "
                "Discrete and MultiDiscrete actions need no discretizing."
            )
        super().__init__(*bounds_of(space), bins)
        self._space = space

    def values(self, checked: NDArray[np.int64]) -> NDArray[Any]:
        values = super().values(checked)
        if np.issubdtype(self._space.dtype, np.integer):
            values = np.rint(values)
        return values.reshape(self._space.shape).astype(self._space.dtype)


class DiscretizeAction(
    gymnasium.Wrapper[Any, NDArray[np.integer[Any]], Any, NDArray[Any]], RecordConstructorArgs
):
    """Wrapper that gives an environment with `Box` actions a `MultiDiscrete` action space.

    Choice `k` of `bins` is `linspace(low, high, bins)[k]`, end points included, within the action
    space's bounds, which must be finite. (Gymnasium's wrapper of this name uses bin centers.)
    Actions are flattened. `bins` (2 to 1,001) is one number for all dimensions, or one each.
    """

    def __init__(
        self, env: gymnasium.Env[Any, NDArray[Any]], bins: int | Sequence[int] = DEFAULT_BINS
    ) -> None:
        RecordConstructorArgs.__init__(self, bins=to_json_values(bins))
        super().__init__(env)
        self._grid = BoxGrid(env.action_space, bins)
        self.action_space = MultiDiscrete(self._grid.nvec)

    def step(self, action: NDArray[np.integer[Any]]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps with one choice per dimension, `(N,)`, or raises InvalidActionError."""
        return self.env.step(self._grid.to_continuous(action))


class DiscretizedEnv(MultiDiscreteEnv):
    """A Gymnasium task with a `Box` action, each dimension one choice of `bins` values.

    The grid spans the action space's bounds, end points included. Observations are flat float32;
    dict entries keep the task's own order (Shimmy's tasks: dm_control's), discrete parts are
    one-hot. Rewards, ends of episodes (with the registered time limit), infos, rendering and
    seeding are the task's.

    Args:
        env_id: Gymnasium id, e.g. `"Pendulum-v1"`, `"module:Name-v0"` to first import a module, or
            one of Shimmy's `"dm_control/..."`.
        bins: as of `DiscretizeAction`.
        env_kwargs: arguments of the task.
        render_mode: one of the task's own.

    Raises:
        gymnasium.error.UnregisteredEnv: no environment of this id is registered.
        MissingDependencyError: a `"dm_control/..."` id without Shimmy or dm_control.
        ValueError: the task's actions are not a `Box` with finite bounds, or bad `bins`.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        bins: int | Sequence[int] = DEFAULT_BINS,
        env_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        kwargs = dict(env_kwargs or {})
        if render_mode is not None:  # not every task has the argument
            kwargs["render_mode"] = render_mode
        self._env = _make(env_id, kwargs)
        self._box = BoxGrid(self._env.action_space, bins)
        fps = int(self._env.metadata.get("render_fps", 30))
        # Shimmy's render_fps is a number of milliseconds, and the last environment's for all.
        if hasattr(self._env.unwrapped, "control_timestep"):
            fps = round(1 / float(self._env.unwrapped.control_timestep()))
        super().__init__(_flat_space(self._env.observation_space), self._box.nvec, render_mode, fps)
        # Names and spaces of the observation's parts, in the order of the first observation.
        self._parts: list[tuple[tuple[str, ...], Space[Any]]] = []

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        observation, info = self._env.reset(seed=seed, options=options)
        if not self._parts:
            self._parts = list(_parts(self._env.observation_space, observation))
        self._write(observation, out)
        return info

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        action_of_task = self._box.values(action)
        observation, reward, terminated, truncated, info = self._env.step(action_of_task)
        self._write(observation, out)
        return float(reward), bool(terminated), bool(truncated), info

    def _write(self, observation: Any, out: NDArray[np.float32]) -> None:
        end = 0
        for path, space in self._parts:
            part = observation
            for key in path:
                part = part[key]
            flat = np.asarray(flatten(space, part))
            start, end = end, end + flat.size
            out[start:end] = flat

    def render(self) -> Any:
        with explained_graphics_errors():
            return self._env.render()

    def _frame(self) -> NDArray[np.uint8]:
        raise NotImplementedError("The task draws itself.")

    def close(self) -> None:
        self._env.close()


def _make(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    if env_id.startswith("dm_control/"):
        _register_shimmy()
    # Its checker is for authors of environments; what matters here is checked here.
    with explained_graphics_errors():  # some of dm_control's tasks observe pictures
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


def _register_shimmy() -> None:
    try:
        # Silenced: glfw's warning without a display, and the notice of gym, which Shimmy imports.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            import dm_control  # noqa: F401 - Shimmy leaves its tasks out without a word
            import shimmy  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Environments 'dm_control/...' need Shimmy and dm_control, one of which could not "
            f"be imported ({error}). Install them with `pip install 'spin-d3rlpy[shimmy]'` on "
            "Python 3.11 or 3.12."
        ) from error


def _flat_space(space: Space[Any]) -> Box:
    try:
        size = flatdim(space)
    except (NotImplementedError, ValueError) as error:
        raise ValueError(
            f"Expected observations that are arrays or (nested) dicts of arrays, got {space}."
        ) from error
    if isinstance(space, Dict):
        # The order of its parts, and so of their bounds, is known when the first one arrives.
        return Box(-np.inf, np.inf, (size,), np.float32)
    flat = flatten_space(space)
    assert isinstance(flat, Box)
    with np.errstate(over="ignore"):  # bounds that float32 cannot hold become infinite
        return Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _parts(
    space: Space[Any], observation: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Space[Any]]]:
    """Yields path and space of each leaf of an observation, in its own order."""
    if not isinstance(space, Dict):
        yield path, space
        return
    for key, value in observation.items():
        yield from _parts(space[key], value, (*path, key))
