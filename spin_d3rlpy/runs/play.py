"""Evaluation of a saved policy: in its environment, on logged data, or as a video."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import FileWriteError
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQE, MultiDiscreteFQEConfig
from spin_d3rlpy.evaluation.metrics import ActionMode, LockstepEvaluator
from spin_d3rlpy.files.atomic import atomic_write, write_errors
from spin_d3rlpy.histories import History, Recent
from spin_d3rlpy.nvec import actions_of
from spin_d3rlpy.runs.policy import OpenedPolicy, open_policy
from spin_envs import MissingDependencyError, normalized_score, reference_scores

VIDEO_FORMATS = (".mp4", ".gif")
GIF_FPS = 25  # viewers show no more, and files grow with it


def play_episodes(
    policy: OpenedPolicy,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 20,
    seed: int = 100,
    mode: ActionMode = "greedy",
) -> dict[str, Any]:
    """Plays seeded episodes in parallel.

    Args:
        policy: see `open_policy`.
        env_id: Gymnasium id; the policy's own environment if None.
        env_kwargs: the environment's arguments.
        episodes: number of episodes.
        seed: of the first episode; later ones count up.
        mode: `"greedy"` or `"sample"`.

    Returns:
        Mean, standard deviation and standard error of the undiscounted returns, the returns and, if
        reference scores are known, the normalized score.
    """
    with closing(policy.make_env(env_id, env_kwargs)) as env:
        evaluator = LockstepEvaluator(env, episodes, seed, mode)
        with closing(evaluator):
            returns = evaluator.returns(policy.actor)
        result: dict[str, Any] = {
            "return": float(returns.mean()),
            "return_std": float(returns.std()),
            "standard_error": float(returns.std() / np.sqrt(len(returns))),
            "episodes": episodes,
            "mode": mode,
        }
        if reference_scores(env) is not None:
            result["score"] = float(normalized_score(env, result["return"]))
    return {**result, "returns": returns.tolist()}


def estimate_value(
    policy: OpenedPolicy,
    dataset: DeviceReplayBuffer,
    n_steps: int = 10_000,
    gamma: float = 0.99,
    mode: ActionMode = "greedy",
    seed: int = 0,
    device: str = "cpu:0",
    show_progress: bool = True,
) -> dict[str, Any]:
    """Estimates a policy's value from logged data: mean `Q(s, pi(s))` over initial states.

    Q is from fitted Q evaluation. The estimate is reliable only where the data cover the policy's
    actions (check with `algo.support`); use it to compare policies.

    Args:
        policy: see `open_policy`.
        dataset: logged episodes.
        n_steps: gradient steps of the evaluation.
        gamma: discount.
        mode: evaluate the greedy or the sampled policy.
        seed: of networks and mini-batches.
        device: as in d3rlpy, the policy's.
        show_progress: draw progress bars.

    Returns:
        `estimated_value` and, for comparison, `data_value`, the log's mean discounted return.
    """
    algo = policy.algorithm
    d3rlpy.seed(seed)
    fqe = MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(gamma=gamma), device, mode)
    loggers = NoopAdapterFactory()
    dataset = dataset.seen_by(algo)
    fqe.fit(dataset, n_steps=n_steps, logger_adapter=loggers, show_progress=show_progress)
    first = np.stack([episode.observations[0] for episode in dataset.episodes])
    masks = dataset.masks_at(dataset.observation_index[dataset.episode_starts[:-1]])
    if masks is not None:
        chosen = algo.predict_masked(first, masks.cpu().numpy(), sample=mode == "sample")
    else:
        chosen = algo.predict(first) if mode == "greedy" else algo.sample_action(first)
    values = fqe.predict_value(first, chosen)
    discounted = [
        float(np.sum(episode.rewards[:, 0] * gamma ** np.arange(len(episode.rewards))))
        for episode in dataset.episodes
    ]
    return {
        "estimated_value": float(np.mean(values)),
        "data_value": float(np.mean(discounted)),
        "gamma": gamma,
        "fqe_steps": n_steps,
    }


def record_policy(
    policy: str,
    out: Path,
    env_id: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    device: str = "cpu:0",
) -> float:
    """Records one greedy episode as a video, `.mp4` or `.gif`; returns its undiscounted return.

    `policy` and `device` are those of `open_policy`, `env_id` and `env_kwargs` of
    `OpenedPolicy.make_env`; `max_steps` limits the video. Raises MissingDependencyError without
    imageio or a graphics back-end.
    """
    if out.suffix not in VIDEO_FORMATS:
        raise ValueError(f"Expected a video file {' or '.join(VIDEO_FORMATS)}, got {out.name!r}.")
    opened = open_policy(policy, device)
    with closing(opened.make_env(env_id, env_kwargs, "rgb_array")) as env:
        fps = env.metadata["render_fps"]
        stride = math.ceil(fps / GIF_FPS) if out.suffix == ".gif" else 1
        observation, _ = env.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        recent = Recent(History.of(getattr(opened.actor, "config", None)))
        with _open_video(out, fps / stride) as append:
            append(np.asarray(env.render()))
            while not over and steps != max_steps:
                seen = np.asarray(observation)[None]
                choices = opened.actor.predict(recent.rows(seen, [0]))
                recent.acted(seen, choices, [0])
                action = actions_of(env.action_space, choices[0])
                observation, reward, terminated, truncated, _ = env.step(action)
                total, steps, over = total + float(reward), steps + 1, terminated or truncated
                if steps % stride == 0 or over:
                    append(np.asarray(env.render()))
    return total


@contextmanager
def _open_video(path: Path, fps: float) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Yields what appends a frame to a video, which is there when the block has ended."""

    def append(frame: NDArray[Any]) -> None:
        with write_errors(path):
            video.append_data(frame)

    with atomic_write(path, path.suffix) as partial:
        with write_errors(path):
            video = _video_writer(partial, fps)
        try:
            yield append
        finally:
            with write_errors(path):
                video.close()
        if path.suffix == ".mp4":
            _check_whole(partial, path)


def _check_whole(partial: Path, path: Path) -> None:
    """Raises FileWriteError if a video has no end: ffmpeg's exit status is lost in imageio 2."""
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.count_frames_and_secs(str(partial))
    except RuntimeError as error:
        raise FileWriteError(
            f"{path} could not be written: ffmpeg left a part of a video, as on a full disk. Free "
            "space, or choose another place."
        ) from error


def _video_writer(path: Path, fps: float) -> Any:
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
