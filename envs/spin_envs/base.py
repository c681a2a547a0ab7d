"""Common parts of this package's environments: checked actions, observations, rendering."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from spin_envs.action_grid import check_action
from spin_envs.layout import ActionLayout

# Reward, terminated, truncated, info.
StepResult = tuple[float, bool, bool, dict[str, Any]]


def to_json_values(value: Any) -> Any:
    """Converts NumPy values in arguments to Python's, for a spec's JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: to_json_values(part) for key, part in value.items()}
    return [to_json_values(part) for part in value] if isinstance(value, list | tuple) else value


class WithPlainSpec:
    """Makes the spec of `gymnasium.make` serializable as JSON."""

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = spec
        if spec is not None:
            spec.kwargs = to_json_values(spec.kwargs)


class MultiDiscreteEnv(
    WithPlainSpec, gymnasium.Env[NDArray[np.float32], NDArray[np.integer[Any]]], abc.ABC
):
    """An environment with a `MultiDiscrete` action and a flat float32 observation.

    A subclass implements `_start`, `_advance` and `_frame`. The first two write the observation
    into a given array, such as a row of a batch in `spin_envs.vector`.

    Args:
        observation_space: flat float32 space, shape `(obs,)`.
        nvec: number of choices of each slot, shape `(N,)`.
        render_mode: `None` or `"rgb_array"` (others are a ValueError). `gymnasium.make` adds
            `"human"`, a window.
        render_fps: frames per second for real-time display.
    """

    # Gymnasium declares it on instances, and each instance here has its own frame rate.
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Box
    action_space: MultiDiscrete
    layout: ActionLayout | None = None  # what slots and choices are, where that is known

    def __init__(
        self,
        observation_space: Box,
        nvec: NDArray[np.int64],
        render_mode: str | None,
        render_fps: int,
    ) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"Expected render_mode None or one of {modes}, got {render_mode!r}.")
        self.observation_space = observation_space
        self.action_space = MultiDiscrete(nvec)
        self.nvec = nvec
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, "render_fps": render_fps}
        self._in_episode = False
        self._elapsed = 0  # steps of the episode, the current one included

    @abc.abstractmethod
    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Starts an episode, writes its first observation to `out` and returns the info."""

    @abc.abstractmethod
    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        """Steps with a checked action and writes the observation to `out`."""

    @abc.abstractmethod
    def _frame(self) -> NDArray[np.uint8]:
        """Draws the state, shape `(height, width, 3)`."""

    def start_into(
        self, out: NDArray[np.float32], seed: int | None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`reset` that writes the observation `(obs,)` to `out` and returns the info."""
        super().reset(seed=seed)
        self._elapsed = 0
        info = self._start(seed, out, options)
        self._in_episode = True
        return info

    def advance_into(self, out: NDArray[np.float32], action: NDArray[np.int64]) -> StepResult:
        """`step` that writes the observation `(obs,)` to `out`; returns the other results."""
        if not self._in_episode:
            raise gymnasium.error.ResetNeeded("No episode is in progress. Call reset() first.")
        self._elapsed += 1
        result = self._advance(action, out)
        self._in_episode = not (result[1] or result[2])
        return result

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode and returns observation `(obs,)` float32 and info; `seed` reseeds."""
        out = np.empty(self.observation_space.shape, np.float32)
        info = self.start_into(out, seed, options)
        return out, info

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Applies one choice per slot, `(N,)`; observations are `(obs,)` float32.

        Raises InvalidActionError for others, Gymnasium's ResetNeeded if no episode is in progress.
        """
        checked = check_action(action, self.nvec)
        out = np.empty(self.observation_space.shape, np.float32)
        reward, terminated, truncated, info = self.advance_into(out, checked)
        return out, reward, terminated, truncated, info

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Returns a frame `(height, width, 3)` in mode `"rgb_array"`."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs render_mode='rgb_array' in gymnasium.make.")
            return None
        return self._frame()


def fill(
    frame: NDArray[np.uint8], box: tuple[float, float, float, float], color: tuple[int, int, int]
) -> None:
    """Fills a rectangle (x from, x to, y from, y to) of the unit square, y up; at least a pixel."""
    left, right = (round(len(frame) * x) for x in box[:2])
    bottom, top = (round(len(frame) * (1 - y)) for y in box[2:])
    frame[max(top, 0) : max(bottom, top + 1), max(left, 0) : max(right, left + 1)] = color


def fill_cell(
    frame: NDArray[np.uint8], cells: int, x: int, y: int, share: float, color: tuple[int, int, int]
) -> None:
    """Fills the middle share of a cell in column `x` and row `y` (from the bottom) of `cells`."""
    low, high = (1 - share) / 2, (1 + share) / 2
    left, right, bottom, top = (z / cells for z in (x + low, x + high, y + low, y + high))
    fill(frame, (left, right, bottom, top), color)
