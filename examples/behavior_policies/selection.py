"""Evaluation of a policy, and selection of the snapshot with the desired return."""

from __future__ import annotations

import csv
import importlib.metadata
import json
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.behavior_policies.recipes import PPORecipe, Recipe
from spin_d3rlpy._version import __version__
from spin_d3rlpy.files.atomic import atomic_write
from spin_d3rlpy.files.results import write_csv
from spin_envs.behavior import BehaviorPolicy
from spin_envs.rollout import rollout
from spin_envs.vector import make_batch

EVALUATION_SEED = 10_000
RECORD_EPISODES = 100


def evaluate_policy(
    policy: BehaviorPolicy, recipe: Recipe, episodes: int, seed: int
) -> NDArray[np.float64]:
    """Returns the undiscounted returns of greedy episodes with seeds `seed ...`."""
    seeds = range(seed, seed + episodes)
    task = recipe.benchmark_task
    n_envs = min(20, episodes)
    with closing(make_batch(task.env_id, n_envs, **task.env_kwargs)) as envs:
        return np.array(
            [e.rewards.sum() for e in rollout(envs, lambda o, _: policy(o), seeds, record=False)]
        )


def select_policy(recipe: Recipe, folder: Path, destination: Path) -> Path:
    """Writes the snapshot whose mean return is closest to the recipe's target.

    The three nearest by the training curve are measured again over 100 episodes.

    Args:
        recipe: what was trained.
        folder: the trainer's folder.
        destination: where `<name>.npz` (arrays), `<name>.json` (scores, versions, command) and
            `<name>.csv` (learning curve until the snapshot) go.

    Returns:
        The path of the arrays.
    """
    with (folder / "curve.csv").open() as f:
        curve = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]
    candidates = []
    for row in sorted(curve, key=lambda row: abs(row["mean_return"] - recipe.target))[:3]:
        path = folder / "snapshots" / f"{int(row['env_steps'])}.npz"
        with np.load(path, allow_pickle=False) as data:
            policy = BehaviorPolicy(dict(data), {})
        returns = evaluate_policy(policy, recipe, RECORD_EPISODES, EVALUATION_SEED)
        candidates.append((abs(returns.mean() - recipe.target), path, row, returns))
    _, path, row, returns = min(candidates, key=lambda candidate: candidate[0])
    learned = recipe.learned_bins if isinstance(recipe, PPORecipe) else None
    record = {
        "task": recipe.task,
        **recipe.benchmark_task.env_kwargs,
        "level": recipe.level,
        "target_return": recipe.target,
        "episodes": RECORD_EPISODES,
        "first_seed": EVALUATION_SEED,
        "mean_return": round(float(returns.mean()), 2),
        "std_return": round(float(returns.std()), 2),
        "min_return": round(float(returns.min()), 2),
        "max_return": round(float(returns.max()), 2),
        "algorithm": recipe.algorithm,
        **({"learned_bins": learned} if learned else {}),
        "env_steps": int(row["env_steps"]),
        "training_seconds": round(row["seconds"]),
        "command": (
            f"python -m examples.behavior_policies train {recipe.benchmark_task.name} "
            f"--level {recipe.level}"
        ),
        "versions": {
            "spin-d3rlpy": __version__,
            **{
                p: importlib.metadata.version(p)
                for p in ("torch", "d3rlpy", "gymnasium", "mujoco", "dm_control", "numpy")
            },
        },
    }
    arrays = destination / f"{recipe.name}.npz"
    arrays.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    until = [
        {
            "env_steps": int(r["env_steps"]),
            "mean_return": f"{r['mean_return']:.6g}",
            "std_return": f"{r['std_return']:.6g}",
        }
        for r in curve
        if r["env_steps"] <= row["env_steps"]
    ]
    write_csv(arrays.with_suffix(".csv"), until)
    with atomic_write(arrays) as partial:  # the last one: who finds it finds the others
        partial.write_bytes(path.read_bytes())
    return arrays
