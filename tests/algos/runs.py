"""Interrupted and resumed runs, for `test_resume` and `test_distributed`.

Functions at the end are called in processes of their own, see `tests.subprocesses.run_processes`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIQL, FactoredIQL, SPINDistillIQL
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.objectives import masked
from spin_d3rlpy.errors import InvalidCheckpointError
from tests.algos.problems import (
    learning_rates,
    new_algorithm,
    optimizers,
    random_buffer,
    tiny_fields,
)

SMALL_DISTILLATION = DistillationConfig(n_updates=7, batch_size=32, validation_interval=3)
TIMES = ("time", "seconds", "cpu_seconds")  # how metrics of times begin
SETTINGS: dict[str, Any] = {
    "n_steps": 11,
    "n_steps_per_epoch": 4,
    "logger_adapter": NoopAdapterFactory(),
    "show_progress": False,
    "checkpoint_interval": 3,
}


class CrashError(Exception):
    """Stands for whatever ends a run."""


def make(algo_class: Any, **fields: Any) -> Any:
    fields = {"batch_size": 19, **tiny_fields(algo_class), **fields}
    if algo_class is SPINIQL:
        fields["pretraining"] = PretrainingConfig(batch_size=32, max_updates=10)
    return new_algorithm(algo_class, **fields)


def make_tuned(algo_class: Any = SPINIQL) -> Any:
    """SPIN by the recipe that the command line trains with, made small."""
    sizes = TransformerConfig(
        width=16, n_blocks=1, n_heads=2, head_hidden=16, dropout=0.0, attention_dropout=0.0
    )
    pretraining = algo_class(recipe="tuned").config.policy.pretraining
    fields: dict[str, Any] = {}
    if algo_class is SPINDistillIQL:
        fields["distillation"] = SMALL_DISTILLATION
    return new_algorithm(
        algo_class,
        recipe="tuned",
        batch_size=19,
        imitation_batch_size=23,
        transformer=sizes,
        pretraining=dataclasses.replace(pretraining, batch_size=32, max_updates=10),
        **fields,
    )


def ticks() -> Callable[[], float]:
    """Returns a clock by which every step takes a second."""
    count = itertools.count()
    return lambda: float(next(count))


def crash_in(owner: Any, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one call of a function crash."""
    original, count = getattr(owner, name), 0

    def crashing(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise CrashError
        return original(*args, **options)

    monkeypatch.setattr(owner, name, crashing)


def noise(_algo: Any, _data: Any) -> float:
    """An evaluator that uses up random numbers of all kinds."""
    return float(torch.rand(1)) + np.random.random() + random.random()  # noqa: NPY002


def fit(algo: Any, folder: Path | None, **settings: Any) -> Any:
    settings = {**SETTINGS, "resume": True, "evaluators": {"noise": noise}, **settings}
    return algo.fit(random_buffer(), checkpoint_dir=folder, **settings)


def outcome(algo: Any, results: Any) -> dict[str, Any]:
    """Everything that is to agree: weights, optimizers, counters, metrics without times."""
    parts = algo.impl.modules.create_checkpointer("cpu:0").modules
    return {
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "grad_step": algo.grad_step,
        "results": [
            (epoch, {k: v for k, v in metrics.items() if not k.startswith(TIMES)})
            for epoch, metrics in results
        ],
        "asm": algo.asm.state_dict()
        if isinstance(algo, SPINIQL | SPINDistillIQL) and algo.asm
        else None,
        "next": (float(torch.rand(1)), float(np.random.random()), random.random()),  # noqa: NPY002
    }


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{path}.{i}")
    else:
        assert one == other, path


def seed(value: int) -> None:
    d3rlpy.seed(value)
    random.seed(value)


def crash_at(step: int) -> Any:
    def callback(_algo: Any, _epoch: int, found: int) -> None:
        if found == step:
            raise CrashError

    return callback


def kill() -> None:
    """Ends this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_pretraining(update: int) -> None:
    """Ends this process in the middle of an update of stage 1."""
    original, count = masked.mask_actions, 0

    def mask_actions(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == update:
            kill()
        return original(*args)

    masked.mask_actions = mask_actions  # type: ignore[assignment]


def kill_in_writing(write: int) -> None:
    """Ends this process when a checkpoint is written, but not yet in its place."""
    original, count = os.replace, 0

    def replace(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == write:
            kill()
        original(*args)

    os.replace = replace  # type: ignore[assignment]


def run(folder: Path, stage: str, stop: int, seeded: bool) -> None:
    """A run that is killed in a stage, or not."""
    torch.set_num_threads(1)
    seed(1 if seeded else 99)
    algo = make(SPINIQL)

    def callback(_algo: Any, _epoch: int, step: int) -> None:
        if stage == "training" and step == stop:
            kill()

    if stage == "pretraining":
        kill_in_pretraining(stop)
    elif stage == "writing":
        kill_in_writing(stop)
    results = fit(algo, folder / "checkpoints", callback=callback)
    torch.save(outcome(algo, results), folder / "outcome.pt")


def join(rank: int, port: int) -> None:
    """Makes this process one of two that train together."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    d3rlpy.distributed.init_process_group("gloo")


def train_together(rank: int, port: int, folder: Path) -> None:
    """An update on two halves of a batch, then both stages of SPIN; leaves files."""
    join(rank, port)
    # Each process has other weights at first, and updates on its half of a batch.
    d3rlpy.seed(rank)
    sgd = d3rlpy.optimizers.SGDFactory()
    algo = new_algorithm(
        FactoredIQL,
        enable_ddp=True,
        **{**tiny_fields(FactoredIQL), **optimizers(FactoredIQL, sgd)},
        **learning_rates(FactoredIQL, 0.1),
    )
    algo.build_with_dataset(random_buffer())
    algo.save(f"{folder}/before-{rank}.d3")
    batch = torch.load(f"{folder}/batch.pt", weights_only=False)
    half: dict[str, Any] = {
        name: value[rank::2] for name, value in vars(batch).items() if torch.is_tensor(value)
    }
    algo.update(dataclasses.replace(batch, **half))
    algo.save(f"{folder}/after-{rank}.d3")

    # Both stages of SPIN, then a file that both load.
    d3rlpy.seed(10 + rank)
    spin = new_algorithm(SPINIQL, enable_ddp=True, batch_size=19, **tiny_fields(SPINIQL))
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    spin.fit(random_buffer(), n_steps=3, **quiet)
    spin.save(f"{folder}/spin-{rank}.d3")
    spin.save_model(f"{folder}/spin-{rank}.pt")
    spin.load_model(f"{folder}/spin-{rank}.pt")
    spin.fit(random_buffer(), n_steps=1, **quiet)
    spin.save(f"{folder}/spin-later-{rank}.d3")
    d3rlpy.distributed.destroy_process_group()


def run_shared(checkpoints: Path | None, seed_value: int, callback: Any = None) -> dict[str, Any]:
    """A run of both processes."""
    seed(seed_value)
    algo = make(SPINIQL, enable_ddp=True)
    return outcome(algo, fit(algo, checkpoints, callback=callback))


def shared_run_that_is_killed(rank: int, port: int, folder: Path) -> None:
    """An uninterrupted run; the same again, killed in stage 1."""
    join(rank, port)
    torch.save(run_shared(None, 1 + rank), folder / f"whole-{rank}.pt")
    kill_in_pretraining(8)
    run_shared(folder / "checkpoints", 1 + rank)


def shared_run_that_goes_on(rank: int, port: int, folder: Path) -> None:
    """A killed run resumes, crashes in stage 2 and resumes again."""
    join(rank, port)
    checkpoints = folder / "checkpoints"
    try:
        run_shared(checkpoints, 99, crash_at(7))
    except CrashError:
        torch.save(run_shared(checkpoints, 99), folder / f"resumed-{rank}.pt")
    # What process 0 finds wrong, all refuse.
    for path in checkpoints.glob("*.ckpt"):
        path.write_bytes(b"something else")
    try:
        run_shared(checkpoints, 99)
    except InvalidCheckpointError:
        (folder / f"refused-{rank}").touch()
    d3rlpy.distributed.destroy_process_group()
