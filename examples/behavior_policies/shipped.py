"""Scores and learning curves of the shipped behavior policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.runs.plots import Curve
from spin_envs.behavior import policy_task, shipped_policies
from spin_envs.scores import reference_scores
from spin_envs.tasks import BenchmarkTask

_POLICIES = resources.files("spin_envs") / "policies"
_RECORDED = (
    "target_return",
    "mean_return",
    "std_return",
    "min_return",
    "max_return",
    "episodes",
    "env_steps",
    "training_seconds",
)


def policy_record(name: str) -> dict[str, Any]:
    """Returns a shipped policy's record (training and scores) without reading its weights."""
    record: dict[str, Any] = json.loads((_POLICIES / f"{name}.json").read_text())
    return record


def learning_curve(name: str) -> NDArray[np.float64]:
    """Returns a shipped policy's learning curve up to its snapshot.

    The rows `(T, 3)` are environment steps, mean and standard deviation of greedy returns.
    """
    lines = (_POLICIES / f"{name}.csv").read_text().splitlines()
    return np.loadtxt(lines, delimiter=",", skiprows=1, ndmin=2, dtype=np.float64)


def policy_rows() -> list[dict[str, Any]]:
    """Returns one row per shipped policy: greedy returns and cost of training."""
    rows = []
    for name in _in_order():
        record = policy_record(name)
        scores = reference_scores(f"spin/{policy_task(name).name}")
        rows.append(
            {
                "policy": name,
                "level": record["level"],
                "published_expert": "" if scores is None else scores[1],
                **{column: round(record[column], 2) for column in _RECORDED},
            }
        )
    return rows


def learning_curves(
    tasks: Sequence[str] = (),
) -> tuple[dict[str, dict[str, Curve]], dict[str, dict[str, float]]]:
    """Returns shipped policies' learning curves over environment steps, and their targets.

    Args:
        tasks: such as `cheetah-run-b3`; all with policies if empty.

    Returns:
        Curves by task and level, and target returns by task and name.

    Raises:
        ValueError: a task without shipped policies; the message lists all.
    """
    curves: dict[str, dict[str, Curve]] = {}
    targets: dict[str, dict[str, float]] = {}
    for name in _in_order():
        record, rows = policy_record(name), learning_curve(name)
        task, level = policy_task(name).name, record["level"]
        curves.setdefault(task, {})[level] = Curve(rows[:, 0], rows[None, :, 1])
        targets.setdefault(task, {})[f"target {level}"] = record["target_return"]
    if unknown := set(tasks) - curves.keys():
        raise ValueError(
            f"Expected tasks with shipped behavior policies ({', '.join(curves)}); got "
            f"{', '.join(sorted(unknown))}."
        )
    chosen = tasks or list(curves)
    # The expert is drawn first: a medium policy may be from the beginning of its training.
    return {task: dict(reversed(curves[task].items())) for task in chosen}, targets


def _in_order() -> list[str]:
    """Shipped policies by task and number, the medium one before the expert."""

    def key(name: str) -> tuple[BenchmarkTask, bool]:
        return policy_task(name), name.endswith("expert")

    return sorted(shipped_policies(), key=key)
