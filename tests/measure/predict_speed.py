"""Time of `predict` of the joint policy against its ONNX export.

Run with `python -m tests.measure.predict_speed`. `SPINIDQL` with the tuned recipe is trained for a
few steps on episodes of random actions: values do not matter for time. What the data support does:
in random data that is every choice, for which a search takes longest. Critics are trusted untested,
so that candidates are compared and the search acts. Both compute in one thread of one process, in
turns. Figures are medians of processor time, which other programs do not lengthen much.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from d3rlpy.logging import NoopAdapterFactory
from numpy.typing import NDArray

from spin_d3rlpy import SPINIDQL, collect
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.training.threads import one_thread
from spin_envs.tasks import BenchmarkTask

TASKS = ("cheetah-run-b3", "dispatch-n10", "slate-n10")
SWEEPS = (0, 1)  # of the search; 0 takes the best of 32 candidates
BATCHES = (1, 2000)
EPISODES, STEPS = 20, 50


def random_buffer(task: str) -> DeviceReplayBuffer:
    """Returns episodes of random actions of a task, with the layout of its action."""
    spec = BenchmarkTask.parse(task)
    env = gymnasium.make(spec.env_id, max_episode_steps=STEPS, **spec.env_kwargs)
    env.action_space.seed(0)
    return collect(env, lambda _: env.action_space.sample(), EPISODES, progress=False)


def trained(buffer: DeviceReplayBuffer, sweeps: int) -> SPINIDQL:
    """Returns an algorithm after a few steps on a buffer."""
    torch.manual_seed(0)
    algo = SPINIDQL(recipe="tuned", search_sweeps=sweeps, held_out_share=0.0)
    algo.config.policy.pretraining.max_updates = 20
    algo.fit(buffer, n_steps=20, logger_adapter=NoopAdapterFactory(), show_progress=False)
    return algo


def exported(algo: SPINIDQL) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Returns the algorithm's ONNX export as a function of observations, in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "policy.onnx")
        algo.save_policy(path)
        session = onnxruntime.InferenceSession(path, options)

    def predict(x: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = session.run(None, {"observations": x})[0]
        return actions

    return predict


def in_turns(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Returns each call's median processor seconds; they take turns, three at least."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, taken in zip(calls, times, strict=True):
            began = time.process_time()
            call()
            taken.append(time.process_time() - began)
    return [statistics.median(taken) for taken in times]


def measure(task: str, sweeps: int, seconds: float = 10.0) -> list[dict[str, Any]]:
    """Returns one row for each batch size of a task, with or without search."""
    buffer = random_buffer(task)
    algo = trained(buffer, sweeps)
    onnx = exported(algo)
    rng = np.random.default_rng(0)
    states = buffer.observations.numpy()
    rows = []
    for batch in BATCHES:
        x = states[rng.integers(len(states), size=batch)]
        same = (algo.predict(x) == onnx(x)).all(1).mean()
        ours, theirs = in_turns([partial(algo.predict, x), partial(onnx, x)], seconds)
        rows.append(
            {
                "task": task,
                "slots": len(buffer.nvec),
                "choices": max(buffer.nvec),
                "search_sweeps": sweeps,
                "batch": batch,
                "predict_ms": f"{1000 * ours:.2f}",
                "onnx_ms": f"{1000 * theirs:.2f}",
                "ratio": f"{ours / theirs:.2f}",
                "same_actions": f"{same:.4f}",
            }
        )
    return rows


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Tasks; by default all three.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each pair is timed.")] = 10.0,
) -> None:
    """Time predict of the joint policy and its ONNX export, both in one thread."""
    found = []
    with one_thread():
        for name in task or TASKS:
            for sweeps in SWEEPS:
                found += measure(name, sweeps, seconds)
                print(format_table(found[-len(BATCHES) :]))
    if out is not None:
        write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
