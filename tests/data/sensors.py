"""An environment whose features are easy to tell apart, flat and in parts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete

CENTERS = np.array([0.0, 100.0, -5.0, 3.0], np.float32)
WIDTHS = np.array([0.05, 10.0, 1.0, 0.0], np.float32)


class Sensors(gymnasium.Env[Any, Any]):
    """Four features around different centers; the last one never changes."""

    def __init__(self, masked: bool = False) -> None:
        self.observation_space: Any = Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = MultiDiscrete([2, 2])
        self.masked = masked

    def _see(self) -> Any:
        return CENTERS + WIDTHS * self.np_random.normal(size=4).astype(np.float32)

    @property
    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.ones((2, 2), bool)} if self.masked else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), self._info

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._see(), 0.0, False, self.steps == 3, self._info


class Parts(Sensors):
    """The same in two parts, whose order is that of their making."""

    def __init__(self, keys: str = "ba") -> None:
        super().__init__()
        box = Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = Dict([(key, box) for key in keys])

    def _see(self) -> Any:
        seen = super()._see()
        return {"a": seen[:2], "b": seen[2:]}


gymnasium.register("test/sensors-v0", entry_point="tests.data.sensors:Sensors")
gymnasium.register("test/parts-v0", entry_point="tests.data.sensors:Parts")
