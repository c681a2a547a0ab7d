"""Videos of saved policies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.saving import load_policy
from spin_envs import MissingDependencyError
from spin_envs.behavior import load_behavior_policy, policy_task, shipped_policies

FORMATS = (".mp4", ".gif")
SAFE_SUFFIX = ".safetensors"
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
    """Plays an episode with greedy actions and writes it as a video.

    Args:
        policy: a `.safetensors` file that `save_policy` wrote; a `.d3` file (a pickle, which
            d3rlpy loads: only open files that you trust); or the name of a shipped behavior
            policy, e.g. `"cheetah-run-b3-expert"`.
        out: an `.mp4` or `.gif` file.
        env_id: Gymnasium id; a shipped policy's own environment if None.
        env_kwargs: arguments of the environment, e.g. `{"bins": 3}`.
        seed: of the episode.
        max_steps: the video ends here if the episode does not end before.
        device: of a saved policy, as in d3rlpy.

    Returns:
        The undiscounted return of what was recorded.

    Raises:
        ValueError: another file format, or a saved policy without an environment.
        FileNotFoundError: no such file or shipped policy.
        InvalidCheckpointError: a `.safetensors` file that is none of `save_policy`.
        NvecMismatchError: the policy was built for another action space.
        MissingDependencyError: imageio or a graphics back-end is missing.
    """
    if out.suffix not in FORMATS:
        raise ValueError(f"Expected a video file {' or '.join(FORMATS)}, got {out.name!r}.")
    act, nvec, own_env_id, own_kwargs = _load_policy(policy, device)
    if env_id is None:
        if own_env_id is None:
            raise ValueError(f"{policy} does not say which environment it is for: pass one.")
        env_id, env_kwargs = own_env_id, {**own_kwargs, **(env_kwargs or {})}
    with closing(gymnasium.make(env_id, render_mode="rgb_array", **(env_kwargs or {}))) as env:
        expected = nvec_from_space(env.action_space)
        if nvec is not None and nvec != expected:
            raise NvecMismatchError(f"The policy has nvec={nvec}, {env_id} nvec={expected}.")
        return _record(env, act, out, seed, max_steps)


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Reads `name=value` texts; a value that is JSON (3, [2, 3], true) is that, else a string.

    Raises:
        ValueError: a text without a name or `=`.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"Expected an argument as name=value, got {text!r}.")
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError:
            arguments[name] = value
    return arguments


def _load_policy(
    policy: str, device: str
) -> tuple[Policy, list[int] | None, str | None, dict[str, Any]]:
    """Returns how it acts, its nvec, and its environment where that is known."""
    if policy.endswith(SAFE_SUFFIX):
        loaded = load_policy(policy, device)
        return loaded.predict, list(loaded.config.nvec or ()), None, {}
    if not policy.endswith(".d3"):
        behavior = load_behavior_policy(policy)
        task = policy_task(policy)
        return behavior, behavior.nvec.tolist(), task.env_id, task.env_kwargs
    if not Path(policy).exists():
        raise FileNotFoundError(
            f"No file {policy}. Shipped policies: {', '.join(shipped_policies())}."
        )
    import d3rlpy

    algo: Any = d3rlpy.load_learnable(policy, device=device)
    nvec = getattr(algo.config, "nvec", None)
    return algo.predict, None if nvec is None else list(nvec), None, {}


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
            action = act(np.asarray(observation)[None])[0]
            observation, reward, terminated, truncated, _ = env.step(action)
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
