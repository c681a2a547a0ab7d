"""Kills runs at random moments, starts them again, and compares what they end with.

A run that is killed (`SIGKILL`: no chance to save) and started again by the same command until it
is done must end with the weights, metrics and files of one that was left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import gymnasium
import numpy as np
import structlog
import torch
import typer
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy.algos import SPINIQL
from spin_d3rlpy.algos.fit import BEST_FILE
from spin_d3rlpy.asm import MLPConfig
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_d3rlpy.files.atomic import atomic_write
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.runs.machine import describe_machine
from tests.algos.problems import new_algorithm

OUTCOME = "outcome.json"
ACTUATORS = 3
# A run that is given a folder and a place to say what it is doing, and leaves `OUTCOME` there.
Run = Callable[[Path, Any], None]


def kill_until_done(
    run: Run, n_kills: int, folder: Path, seed: int = 0, longest: float = 0.7
) -> list[dict[str, Any]]:
    """Kills a run that often and compares its outcomes with an uninterrupted one's.

    When a run ends before it would have been killed, the next one starts from scratch.

    Args:
        run: a function of a module that can be imported; called in processes of their own.
        n_kills: how many in all.
        folder: where runs get folders of their own.
        seed: of the moments.
        longest: after at most this share of an uninterrupted run's time a run is killed.

    Returns:
        One row a kill: the run it hit, how many seconds after its start, what it was doing, and
        whether that run's outcome was identical in the end.

    Raises:
        RuntimeError: a run failed by itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run.__module__])
    moments = random.Random(seed)

    def attempt(where: Path, seconds: float | None) -> str | None:
        """Runs until the end or for that time; returns the activity that the kill interrupted."""
        where.mkdir(exist_ok=True)
        doing = context.RawArray("c", 32)
        process = context.Process(target=run, args=(where, doing))
        process.start()
        while not doing.value and process.is_alive():  # importing takes longer than the run
            time.sleep(0.001)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        if process.exitcode == 0:
            return None
        if process.exitcode != -9:
            raise RuntimeError(f"A run ended with exit code {process.exitcode}.")
        writing = any(where.rglob(".*.partial"))
        return "writing a checkpoint" if writing else bytes(doing.value).decode()

    attempt(folder / "whole", None)
    started = time.monotonic()
    attempt(folder / "again", None)  # the first one's imports are not counted
    limit = longest * (time.monotonic() - started)
    expected = (folder / "whole" / OUTCOME).read_text()
    rows: list[dict[str, Any]] = []
    for number in range(1, n_kills + 2):
        where, first = folder / f"run_{number}", len(rows)
        while True:
            last = len(rows) == n_kills
            seconds = moments.uniform(0.0, limit)
            moment = attempt(where, None if last else seconds)
            if moment is None:
                break
            rows.append({"run": number, "seconds": round(seconds, 3), "moment": moment})
        identical = (where / OUTCOME).read_text() == expected
        for row in rows[first:]:
            row["identical"] = identical
        if last:
            break
    return rows


def train(folder: Path, doing: Any) -> None:
    """A small run of both stages of SPIN-IQL, by the tuned recipe, with evaluation in the maze."""
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    buffer = random_maze_data()
    env = gymnasium.make("spin/maze-v0", actuators=ACTUATORS)
    evaluator = LockstepEvaluator(env, 4, mode="sample")

    def evaluate(algo: Any, _data: Any) -> float:
        doing.value = b"evaluation"
        value = evaluator(algo)
        doing.value = b"updates"
        return value

    def update(*_: Any) -> None:
        doing.value = b"updates"

    d3rlpy.seed(0)
    algo = new_algorithm(
        SPINIQL, recipe="tuned", batch_size=32, imitation_batch_size=64, mlp=MLPConfig(width=16)
    )
    algo.config.policy.pretraining.batch_size, algo.config.policy.pretraining.max_updates = 64, 40
    trained = any((folder / "checkpoints").glob("training_*.ckpt"))
    doing.value = b"training" if trained else b"pre-training"
    results = algo.fit(
        buffer,
        n_steps=60,
        n_steps_per_epoch=10,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
        evaluators={"return": evaluate},
        callback=update,
        checkpoint_dir=folder / "checkpoints",
        resume=True,
        checkpoint_interval=3,
        best_by="return",
    )
    assert algo.impl is not None
    assert algo.asm is not None
    parts = algo.impl.modules.create_checkpointer("cpu:0").modules
    outcome = {
        "weights and optimizers": digest({name: p.state_dict() for name, p in parts.items()}),
        "ASM": digest(algo.asm.state_dict()),
        "metrics": [
            {
                name: value
                for name, value in metrics.items()
                if not name.startswith(("time", "seconds"))
            }
            for _, metrics in results
        ],
        "steps": algo.grad_step,
        "best policy": hashlib.sha256(
            (folder / "checkpoints" / BEST_FILE).read_bytes()
        ).hexdigest(),
        "next random number": float(torch.rand(())),
    }
    with atomic_write(folder / OUTCOME) as partial:
        partial.write_text(json.dumps(outcome))
    env.close()


def digest(content: Any) -> str:
    """Returns a hash of nested dictionaries, lists, numbers and tensors, to the last bit."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(str((value.dtype, tuple(value.shape))).encode())
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for entry in value:
                add(entry)
        else:
            found.update(repr(value).encode())

    add(content)
    return found.hexdigest()


def random_maze_data() -> DeviceReplayBuffer:
    """Made-up transitions in the maze's spaces, the same ones each time."""
    rng = np.random.default_rng(0)
    lengths = [40] * 20
    n = sum(lengths)
    return DeviceReplayBuffer(
        StackedEpisodes(
            observations=rng.random((n + len(lengths), 2), dtype=np.float32),
            actions=rng.integers(2, size=(n, ACTUATORS)).astype(np.int8),
            rewards=rng.normal(size=n).astype(np.float32),
            terminals=np.zeros(n, np.float32),
            lengths=lengths,
            nvec=[2] * ACTUATORS,
        )
    )


def run_kill_benchmark(out: Path, n_kills: int = 50, log: Callable[[str], None] = print) -> bool:
    """Kills `train` and writes one row a kill as CSV.

    Args:
        out: the file.
        n_kills: how many.
        log: gets what was found as text.

    Returns:
        Whether all runs ended identically.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = kill_until_done(train, n_kills, Path(folder))
    versions = " ".join(f"{k}={v}" for k, v in describe_machine()["versions"].items())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(out, [{"kill": i, **row, "versions": versions} for i, row in enumerate(rows, 1)])
    hit = Counter(row["moment"] for row in rows)
    log(format_table([{"moment": moment, "kills": n} for moment, n in hit.most_common()]))
    identical = all(row["identical"] for row in rows)
    log(f"{rows[-1]['run']} runs, {'all' if identical else 'NOT all'} identical in the end")
    return identical


def main(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("kills.csv"),
    kills: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
) -> None:
    """Kill small runs at random moments, resume them, and compare with one left alone."""
    if not run_kill_benchmark(out, kills):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
