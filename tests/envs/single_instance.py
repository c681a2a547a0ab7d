"""Environments of which a process can have one instance, or one that works."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

Second = Literal["works", "raises", "waits", "waits at reset", "is broken", "shares"]


class OneInstance(gymnasium.Env[Any, Any]):
    """Counts its steps; `second` says what other instances in the same process do."""

    made: ClassVar[int] = 0
    shared: ClassVar[list[int]] = [0]

    def __init__(self, second: Second = "raises", length: int = 5) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = MultiDiscrete([2, 3])
        self.is_first = type(self).made == 0
        type(self).made += 1
        self.second, self.length, self.steps = second, length, 0
        if self.is_first:
            return
        if second == "raises":
            raise RuntimeError("The simulator is in use.")
        if second == "waits":
            time.sleep(1000)

    def _count(self, to: int) -> None:
        self.steps = to
        if self.second == "shares":
            self.shared[0] = to

    def _observe(self) -> Any:
        steps = self.shared[0] if self.second == "shares" else self.steps
        seen = np.array([steps, self._start, 1.0], np.float32)
        return seen if self.is_first or self.second != "is broken" else np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if not self.is_first and self.second == "waits at reset":
            time.sleep(1000)
        self._start = float(self.np_random.random())
        self._count(0)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._count(1 + (self.shared[0] if self.second == "shares" else self.steps))
        return self._observe(), float(action[1]), False, self.steps >= self.length, {}


gymnasium.register("test/one-instance-v0", entry_point="tests.envs.single_instance:OneInstance")
