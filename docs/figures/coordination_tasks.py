"""Draws docs/figures/coordination_tasks.png."""

from pathlib import Path
from typing import Any

import gymnasium
import matplotlib.image
import numpy as np

import spin_envs  # noqa: F401  (registers the environments)

frames: list[Any] = []
for name in ("dispatch", "slate"):
    env = gymnasium.make(f"spin/{name}-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(10):
        env.step(env.action_space.sample())
    frames += [env.render(), np.full((400, 20, 3), 255, np.uint8)]
    env.close()
matplotlib.image.imsave(Path(__file__).with_suffix(".png"), np.concatenate(frames[:-1], axis=1))
