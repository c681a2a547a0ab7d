"""Reference scores and normalized scores."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from spin_envs.cone import reference_returns
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

# Name -> (random, expert): mean returns published with the discretized control benchmark of
# Beeson, Ireland and Montana (2024, arXiv 2411.11088). Those of walker and quadruped-run are not in
# the paper but in its companion package: dmc_datasets/constants.py in the repository
# davidireland3/dmc_datasets at commit 45e5907.
PUBLISHED_SCORES: dict[str, tuple[float, float]] = {
    "spin/finger-spin-b3": (4.36, 853.62),
    "spin/fish-swim-b3": (72.32, 418.58),
    "spin/cheetah-run-b3": (5.39, 664.57),
    "spin/quadruped-walk-b3": (121.37, 781.19),
    "spin/humanoid-stand-b3": (4.54, 711.9),
    "spin/dog-trot-b3": (7.32, 724.37),
    "spin/dog-trot-b10": (6.48, 736.95),
    "spin/dog-trot-b30": (6.39, 768.24),
    "spin/dog-trot-b50": (6.1, 752.58),
    "spin/dog-trot-b75": (6.31, 803.05),
    "spin/dog-trot-b100": (6.14, 756.86),
    "spin/walker-walk-b3": (44.6, 900.3),
    "spin/walker-run-b3": (25.7, 701.2),
    "spin/quadruped-run-b3": (149.8, 753.4),
    "spin/maze-a3": (-1.76, 99.22),
    "spin/maze-a5": (-5.62, 99.34),
    "spin/maze-a7": (-6.85, 99.38),
    "spin/maze-a10": (-7.45, 99.37),
    "spin/maze-a12": (-7.45, 99.2),
    "spin/maze-a15": (-7.45, 99.33),
}
# The same of this package's own tasks, measured: 400 episodes of uniformly random actions and of
# the expert rule (`spin_envs.scripted`).
MEASURED_SCORES: dict[str, tuple[float, float]] = {
    "spin/dispatch-n5": (8.65, 29.74),
    "spin/dispatch-n10": (8.73, 36.90),
    "spin/dispatch-n20": (8.75, 43.98),
    "spin/dispatch-n50": (8.79, 49.31),
    "spin/dispatch-n100": (8.82, 49.98),
    "spin/slate-n5": (16.97, 30.94),
    "spin/slate-n10": (20.74, 37.39),
    "spin/slate-n20": (22.92, 40.32),
    "spin/slate-n50": (24.37, 42.05),
}
_registered: dict[str, tuple[float, float]] = {}

# What changes how an environment is made or looks, not what its returns mean.
_IRRELEVANT = {
    "render_mode",
    "width",
    "height",
    "camera_id",
    "size",
    "num_envs",
    "vectorization_mode",
    "vector_kwargs",
    "wrappers",
    "domain",
    "task",
    "max_episode_steps",
}
_DATASET_NAME = re.compile(rf"(?P<task>spin/{TASK_NAME_PATTERN})(?:/.+)?")
_ENV_ID = re.compile(r"spin/(?P<task>.+)-v\d+")

EnvOrName = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any] | str
Returns = TypeVar("Returns", float, NDArray[np.float64])


def score_name(env_or_name: EnvOrName, **kwargs: Any) -> str:
    """Returns the name under which reference scores are stored, e.g. `"spin/cheetah-run-b3"`.

    Args:
        env_or_name: an environment made by Gymnasium; an environment id, with arguments in `kwargs`
            (defaults where omitted); or a dataset's name, with or without its last part:
            `"spin/cheetah-run-b3/medium-v0"`.
        **kwargs: arguments of the environment id, e.g. `bins=3`.

    Raises:
        ValueError: an environment not made by Gymnasium, or arguments without an id.
    """
    if isinstance(env_or_name, str):
        env_id = env_or_name
    elif env_or_name.spec is None:
        raise ValueError("Expected an environment made by gymnasium.make, or a name.")
    else:
        env_id = env_or_name.spec.id
        kwargs = {**env_or_name.spec.kwargs, **kwargs}
    if match := _DATASET_NAME.fullmatch(env_id):
        if kwargs:
            raise ValueError(f"The name {env_id!r} is complete, got also {kwargs}.")
        return match["task"]
    env_id = env_id.partition(":")[2] or env_id
    arguments = {k: v for k, v in kwargs.items() if k not in _IRRELEVANT}
    match = _ENV_ID.fullmatch(env_id)
    if match and match["task"] != "discretized":
        task = BenchmarkTask.of_environment(match["task"], arguments)
        if task is not None:
            return f"spin/{task.name}"
    if not arguments:
        return env_id
    return f"{env_id} {json.dumps(arguments, sort_keys=True, default=np.ndarray.tolist)}"


def reference_scores(env_or_name: EnvOrName, **kwargs: Any) -> tuple[float, float] | None:
    """Returns a task's (random, expert) mean returns, or None if unknown; see `score_name`.

    The expert of `spin/cone-v0` is the exact optimum, see `spin_envs.cone.reference_returns`.
    """
    name = score_name(env_or_name, **kwargs)
    known = {**PUBLISHED_SCORES, **MEASURED_SCORES, **_registered}.get(name)
    return _computed_scores(name) if known is None else known


def _computed_scores(name: str) -> tuple[float, float] | None:
    """Returns the scores that need no record, because the task can be solved; None of others."""
    try:
        task = BenchmarkTask.parse(name.removeprefix("spin/"))
    except ValueError:
        return None
    return reference_returns(**task.env_kwargs) if task.task == "cone" else None


def register_reference_scores(
    env_or_name: EnvOrName, *, random: float, expert: float, **kwargs: Any
) -> None:
    """Sets a task's reference scores in this process, for any Gymnasium environment.

    Args:
        env_or_name: see `score_name`; other strings are used as names.
        random: mean return that scores 0, usually a uniformly random policy's.
        expert: mean return that scores 100.
        **kwargs: see `score_name`.

    Raises:
        ValueError: the scores are not two different finite numbers.
    """
    if not (math.isfinite(random) and math.isfinite(expert)) or random == expert:
        raise ValueError(f"Expected two different finite returns, got {random} and {expert}.")
    _registered[score_name(env_or_name, **kwargs)] = (float(random), float(expert))


def normalized_score(env_or_name: EnvOrName, returns: Returns, **kwargs: Any) -> Returns:
    """Rescales undiscounted returns so that the random policy scores 0 and the expert 100.

    The task is given as in `score_name`.

    Raises:
        KeyError: it has no reference scores.
    """
    scores = reference_scores(env_or_name, **kwargs)
    if scores is None:
        known = ", ".join([*PUBLISHED_SCORES, *MEASURED_SCORES, *_registered])
        name = score_name(env_or_name, **kwargs)
        raise KeyError(f"No scores of {name}. Known: {known}. See register_reference_scores.")
    low, high = scores
    return 100.0 * (returns - low) / (high - low)
