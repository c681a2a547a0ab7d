"""A small problem of images and numbers for tests; sizes are unequal."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from d3rlpy.models.encoders import PixelEncoderFactory
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from spin_d3rlpy import collect
from spin_d3rlpy.data import DeviceReplayBuffer

NVEC = [3, 5, 2]
IMAGE = (6, 8, 3)  # channels last
SMALL = PixelEncoderFactory(filters=[[4, 3, 2]], feature_size=6)


class PictureEnv(gymnasium.Env[Any, Any]):
    """Pays for the first slot's last choice in a light image, for its first one in a dark one.

    Episodes are truncated after nine steps.

    Args:
        kind: `"image"` alone, or `"mixed"` with numbers.
        image: the image's shape.
        render_mode: nothing is drawn.
    """

    def __init__(
        self,
        kind: str = "mixed",
        image: tuple[int, ...] = IMAGE,
        render_mode: str | None = None,
    ) -> None:
        self.action_space = MultiDiscrete(NVEC)
        camera = Box(0, 255, image, np.uint8)
        self.kind, self.shape = kind, image
        self.observation_space: Space[Any] = camera
        if kind == "mixed":
            self.observation_space = Dict(
                {"camera": camera, "body": Dict({"gear": Discrete(3), "speed": Box(-9, 9, (2,))})}
            )

    def _observe(self) -> Any:
        self._light = bool(self.np_random.integers(2))
        dark = 0 if not self._light else 150
        image = self.np_random.integers(dark, dark + 106, self.shape).astype(np.uint8)
        if self.kind == "image":
            return image
        speed = self.np_random.normal(3.0, 2.0, 2).clip(-9, 9).astype(np.float32)
        return {"camera": image, "body": {"gear": self.np_random.integers(3), "speed": speed}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action)), action
        reward = float(action[0] == (NVEC[0] - 1 if self._light else 0))
        self._step += 1
        return self._observe(), reward, False, self._step == 9, {}


@functools.cache
def pictures(
    kind: str = "mixed", image: tuple[int, ...] = IMAGE, episodes: int = 13
) -> DeviceReplayBuffer:
    """Episodes of actions drawn at random."""
    env = PictureEnv(kind, image)
    env.action_space.seed(0)
    return collect(env, lambda _: env.action_space.sample(), episodes=episodes, progress=False)
