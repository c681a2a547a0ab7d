"""A small environment whose action is a Dict of a Tuple and a Box."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete, Tuple

ID = "test/pad-v0"


class Pad(gymnasium.Env[Any, Any]):
    """Is paid where a gear fits the first feature, and a stick's first axis the second one."""

    steps_of_episode = 8

    def __init__(
        self, masks: bool = False, sticks: bool = True, render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self.masks, self.sticks = masks, sticks
        self.observation_space = Box(-1.0, 1.0, (3,))
        self.action_space = self.space(sticks)

    @staticmethod
    def space(sticks: bool = True) -> Dict:
        buttons = Tuple([MultiDiscrete([3], start=[4]), MultiBinary(2)])
        stick = {"stick": Box(-1.0, 1.0, (2,))} if sticks else {}
        return Dict({"buttons": buttons, **stick})

    @classmethod
    def sample(cls, seed: int) -> Any:
        space = cls.space()
        space.seed(seed)
        return space.sample()

    def _info(self) -> dict[str, Any]:
        gears, two = ([1, 1, 0],), np.array([0, 2], np.int8)
        return {"action_mask": {"buttons": (gears, two)}} if self.masks else {}

    def _see(self) -> Any:
        self.state = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        return self.state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), self._info()

    def wanted(self) -> Any:
        """The action that is paid most."""
        gear = 4 + int(np.digitize(self.state[0], [-0.3, 0.3]))
        action: dict[str, Any] = {"buttons": (np.array([gear]), np.array([0, 1], np.int8))}
        if self.sticks:
            action["stick"] = np.array([self.state[1], 0.0], np.float32)
        return action

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.acted, self.steps = action, self.steps + 1
        wanted = self.wanted()
        reward = float(action["buttons"][0][0] == wanted["buttons"][0][0])
        if "stick" in action:
            reward -= abs(float(action["stick"][0] - self.state[1]))
        return self._see(), reward, False, self.steps == self.steps_of_episode, self._info()
