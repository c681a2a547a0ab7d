"""Settings of a job's training, and which finished jobs had others than today's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from examples.paper.job import RESULT, RUN, Job
from spin_d3rlpy.files.yaml_settings import read_settings
from spin_d3rlpy.runs.settings import (
    PretrainSettings,
    TrainSettings,
    pretrain_settings,
    train_settings,
)
from spin_d3rlpy.runs.training import CONFIG
from spin_envs.tasks import BenchmarkTask

CHECKPOINT_INTERVAL = 1_000  # steps
EVALUATION_SEED = 100
TIMED_EPOCHS = 4  # evaluations of a timed training


def common_settings(job: Job) -> dict[str, Any]:
    """Returns the settings that a pre-training and a training share."""
    named = {name: getattr(job, name) for name in ("dataset", "size", "seed", "device")}
    return {**named, "checkpoint_interval": CHECKPOINT_INTERVAL}


def settings_of(job: Job, asm: str | None) -> TrainSettings:
    """Returns the settings of a job that trains; `asm` is the file of its pre-trained model."""
    values = {
        "algorithm": str(job.algorithm),
        "fields": dict(job.fields),
        "episodes": job.episodes,
        "evaluation_seed": EVALUATION_SEED,
        "mode": job.mode,
        **common_settings(job),
    }
    if job.seconds is None:
        steps: Any = {"n_steps": job.n_steps, "n_steps_per_epoch": job.n_steps_per_epoch}
        return TrainSettings(asm=asm, **steps, **values)
    timed = {"recipe": job.recipe, "seconds": job.seconds, "n_epochs": TIMED_EPOCHS}
    return train_settings({**values, **timed, "asm": asm}, "job")


def pretraining_of(job: Job) -> PretrainSettings:
    """Returns the settings of a job that pre-trains."""
    values = {**job.fields, **common_settings(job)}
    if job.seconds is None:
        return PretrainSettings(**values)
    return pretrain_settings({**values, "recipe": job.recipe}, "job")


def outdated(root: Path, jobs: Iterable[Job]) -> dict[str, list[str]]:
    """Returns finished jobs, by name, whose settings today's recipe would not give.

    A job names its recipe, and not the recipe's values, which a later version may change. Returns
    of both are not to be compared.

    Args:
        root: folder of the jobs.
        jobs: that are looked at; those without a recipe have all their values in their name.

    Returns:
        The fields that differ, of each such job.
    """
    differing_of = {}
    for job in jobs:
        config = root / job.name / RUN / CONFIG
        is_finished = (root / job.name / RESULT).exists() and config.exists()
        if job.kind != "train" or job.seconds is None or not is_finished:
            continue
        asm = None if job.asm is None else job.asm.name  # any: the model has fields of its own
        now = dataclasses.asdict(settings_of(job, asm))["fields"]
        then = read_settings(config).get("fields", {})
        names = sorted((now | then).keys() - _without_effect(job.dataset))
        if differing := [name for name in names if _differ(now.get(name), then.get(name))]:
            differing_of[job.name] = differing
    return differing_of


def _without_effect(dataset: str) -> set[str]:
    """Names of fields on which no result of a dataset depends."""
    has_features = BenchmarkTask.parse(dataset.split("/")[1]).needs_coordination
    return {"compile_graph"} if has_features else {"compile_graph", "entities"}


def _differ(now: object, then: object) -> bool:
    if isinstance(now, dict) and isinstance(then, dict):  # sizes may have got a field since
        return any(now[name] != then[name] for name in now.keys() & then.keys())
    return bool(now != then)
