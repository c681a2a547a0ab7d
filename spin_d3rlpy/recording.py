"""Videos of saved policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.nvec import actions_of
from spin_d3rlpy.policy_files import open_policy
from spin_envs import MissingDependencyError

FORMATS = (".mp4", ".gif")
GIF_FPS = 25  # viewers show no more, and files grow with it

Policy = Callable[[NDArray[np.float32]], NDArray[Any]]


def record_policy(
    policy: str,
    out: Path,
    env_id: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    device: str = "cpu:0",
) -> float:
    """Records one greedy episode as a video and returns its undiscounted return.

    Args:
        policy: see `open_policy`.
        out: an `.mp4` or `.gif` file.
        env_id: Gymnasium id; the policy's own environment if None.
        env_kwargs: the environment's arguments, e.g. `{"bins": 3}`.
        seed: of the episode.
        max_steps: maximum length of the video.
        device: of a saved policy, as in d3rlpy.

    Raises:
        ValueError: an unknown file format, or a saved policy without an environment.
        FileNotFoundError: no such file or shipped policy.
        InvalidCheckpointError: the `.safetensors` file is not from `save_policy`.
        NvecMismatchError: the environment has another action space than the policy.
        MissingDependencyError: imageio or a graphics back-end is missing.
    """
    if out.suffix not in FORMATS:
        raise ValueError(f"Expected a video file {' or '.join(FORMATS)}, got {out.name!r}.")
    opened = open_policy(policy, device)
    with closing(opened.make_env(env_id, env_kwargs, "rgb_array")) as env:
        return _record(env, opened.actor.predict, out, seed, max_steps)


def _record(
    env: gymnasium.Env[Any, Any], act: Policy, out: Path, seed: int, max_steps: int | None
) -> float:
    fps = env.metadata["render_fps"]
    stride = math.ceil(fps / GIF_FPS) if out.suffix == ".gif" else 1
    observation, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    with closing(_open_video(out, fps / stride)) as video:
        video.append_data(env.render())
        while not over and steps != max_steps:
            choices = act(np.asarray(observation)[None])[0]
            observation, reward, terminated, truncated, _ = env.step(
                actions_of(env.action_space, choices)
            )
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
            if steps % stride == 0 or over:
                video.append_data(env.render())
    return total


def _open_video(path: Path, fps: float) -> Any:
    try:
        import imageio

        if path.suffix == ".gif":
            return imageio.get_writer(path, duration=1000 / fps, loop=0)
        # H.264 wants even sizes; by default imageio would stretch frames to multiples of 16.
        return imageio.get_writer(path, fps=fps, macro_block_size=2)
    except ImportError as error:
        raise MissingDependencyError(
            f"Writing videos needs imageio with ffmpeg ({error}). Install them with "
            "`pip install 'spin-d3rlpy[video]'`."
        ) from error
