"""Time, torch operations and returns of decisions by the search of `SPINIDQL`.

Run with `python -m tests.measure.search_speed`. The tuned recipe is trained for seconds of one
processor on mixed data, so that a slot has few likely choices, as in use; the search acts whatever
trust says of so short a training. All computes in one thread; `ATEN_CPU_CAPABILITY=avx2` in front
stands for processors without AVX-512. Times are medians of processor time, operations are those of
a decision of one state that torch dispatches. With `--keep`, trained algorithms stay in a folder,
so that two versions of the search are compared with the same networks. `--candidates 32` compares
with this number of candidates that a search starts from, by the same networks and episodes. The
task `ward` is the one of `examples/treatment`; `slate-n10/medium` is trained on data of that name.
With `--onnx` the file of the same algorithm is timed, too. With
`--rule tests.algos.zones:couriers_apart`, decisions that keep a rule are timed as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import numpy as np
import torch
import typer
from d3rlpy.logging import NoopAdapterFactory
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from spin_d3rlpy import SPINIDQL, LockstepEvaluator, load_dataset
from spin_d3rlpy.asm.rule_files import imported
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.training.threads import one_thread
from tests.measure.predict_speed import exported

TASKS = (
    "slate-n10",
    "dispatch-n10",
    "dispatch-n20",
    "dispatch-n50",
    "cheetah-run-b3",
    "dog-trot-b3",
)
BATCHES = (1, 64)
SIZE = 20_000  # transitions
PATIENTS = 10_000  # of the ward's log
WARD = Path(__file__).parents[2] / "examples" / "treatment"


class CountOperations(TorchDispatchMode):
    """Counts the operations that torch dispatches in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_operations(call: Callable[[], Any]) -> int:
    """Returns how many operations a call asks torch for."""
    with CountOperations() as counted:
        call()
    n: int = counted.count
    return n


def data_of(task: str) -> DeviceReplayBuffer:
    """Returns a task's data."""
    if task == "ward":
        sys.path.insert(0, str(WARD))
        from outcomes import read_log
        from write_log import ward_log

        log: DeviceReplayBuffer = read_log(ward_log(PATIENTS, seed=0))
        return log
    buffer, env = load_dataset(dataset_of(task), size=SIZE)
    env.close()
    return buffer


def dataset_of(task: str) -> str:
    """Returns the name of a task's data, medium-expert unless the task says which."""
    return f"spin/{task if '/' in task else f'{task}/medium-expert'}-v0"


def returns_of(algo: SPINIDQL, task: str, episodes: int) -> NDArray[np.float64]:
    """Returns what seeded episodes return; of the ward fifty patients' mean is one."""
    if task == "ward":
        from outcomes import treated_by

        values = [treated_by(algo, 50, seed)["value"] for seed in range(10_000, 10_000 + episodes)]
        return np.array(values)
    _, env = load_dataset(dataset_of(task), size=SIZE)
    with closing(LockstepEvaluator(env, episodes, seed=10_000)) as evaluator:
        returns: NDArray[np.float64] = evaluator.returns(algo)
    return returns


def trained(task: str, seconds: float, keep: Path | None) -> SPINIDQL:
    """Returns an algorithm of a task, trained or as it was kept."""
    path = None if keep is None else keep / f"{task.replace('/', '-')}.d3"
    if path is not None and path.exists():
        kept: Any = d3rlpy.load_learnable(str(path))
        kept.preparation = data_of(task).preparation  # this kind of file has no tables
        return kept  # type: ignore[no-any-return]
    d3rlpy.seed(0)
    algo = SPINIDQL(recipe="tuned", search="always")
    silent: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(data_of(task), seconds=seconds, clock="ops", **silent)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        algo.save(str(path))
    return algo


def median_ms(call: Callable[[Any], Any], inputs: list[Any], seconds: float) -> float:
    """Returns the median processor time of a call in milliseconds, of each input once at least."""
    call(inputs[0])
    taken, end, i = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < end or i < min(5, len(inputs)):
        began = time.process_time()
        call(inputs[i % len(inputs)])
        taken.append(1e3 * (time.process_time() - began))
        i += 1
    return statistics.median(taken)


def states_of(task: str) -> NDArray[np.float32]:
    """Returns observations of the data, `(1000, obs)`."""
    buffer = data_of(task)
    rows: NDArray[np.float32] = buffer.observations_at(buffer.observation_index[::20]).numpy()
    return rows


def compared(
    algo: SPINIDQL, task: str, seconds: float, episodes: int, numbers: list[int]
) -> list[dict[str, Any]]:
    """Returns a row as the algorithm acts, and one for each number of candidates.

    Gains are over the first row's returns, in the same episodes.
    """
    rows = [measure(algo, task, seconds, episodes)]
    for n in numbers:
        algo.config.n_action_samples = n
        rows.append(measure(algo, task, seconds, episodes))
    if episodes:
        first = np.array(rows[0]["returns"].split(), dtype=float)
        for row in rows:
            gains = np.array(row["returns"].split(), dtype=float) - first
            row["gain_of_return"] = f"{gains.mean():.3f}"
            row["standard_error"] = f"{gains.std() / episodes**0.5:.3f}"
    return rows


def measure(
    algo: SPINIDQL,
    task: str,
    seconds: float,
    episodes: int,
    rule: str | None = None,
    onnx: bool = False,
) -> dict[str, Any]:
    """Returns what a task's decisions take, and return if episodes are to be played."""
    states = states_of(task)
    kept = None if rule is None else imported(rule)
    row: dict[str, Any] = {
        "task": task,
        "slots": algo.predict(states[:1]).shape[1],
        "processor": torch.backends.cpu.get_cpu_capability(),
        "candidates": algo.config.n_action_samples,
        "sweeps": algo.config.search_sweeps,
        "operations": count_operations(lambda: algo.predict(states[:1])),
    }
    file = exported(algo) if onnx else None
    for batch in BATCHES:
        inputs = [states[i : i + batch] for i in range(0, 640, max(batch, 20))]
        row[f"ms_a_state_at_{batch}"] = f"{median_ms(algo.predict, inputs, seconds) / batch:.2f}"
        if file is not None:
            row[f"onnx_at_{batch}"] = f"{median_ms(file, inputs, seconds) / batch:.2f}"
        if kept is not None:
            ruled = median_ms(lambda x: algo.act(x, kept), inputs, seconds) / batch
            row[f"by_the_rule_at_{batch}"] = f"{ruled:.2f}"
    if episodes:
        returns = returns_of(algo, task, episodes)
        row["return"], row["episodes"] = f"{returns.mean():.3f}", episodes
        row["returns"] = " ".join(f"{one:.3f}" for one in returns)
    return row


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Tasks; by default six.")] = None,
    train: Annotated[float, typer.Option(help="Processor seconds of each training.")] = 45.0,
    keep: Annotated[Path | None, typer.Option(help="A folder for trained algorithms.")] = None,
    rule: Annotated[str | None, typer.Option(help="module:function, compared with none.")] = None,
    onnx: Annotated[bool, typer.Option(help="Time ONNX files, too.")] = False,
    seconds: Annotated[float, typer.Option(help="How long each size is timed.")] = 3.0,
    candidates: Annotated[list[int] | None, typer.Option(help="Numbers to compare with.")] = None,
    episodes: Annotated[int, typer.Option(help="To play for returns; 0 plays none.")] = 0,
) -> None:
    """Time decisions of SPINIDQL with a search, in one thread, and count torch's operations."""
    found = []
    with one_thread():
        for name in task or TASKS:
            algo = trained(name, train, keep)
            if candidates:
                rows = compared(algo, name, seconds, episodes, candidates)
            else:
                rows = [measure(algo, name, seconds, episodes, rule, onnx)]
            for row in rows:
                row.pop("returns", None)
            found += rows
            print(format_table(rows), flush=True)
            if out is not None:  # after each, because all take an hour
                write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
