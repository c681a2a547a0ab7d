"""A log larger than memory: what reading it takes, and a training step on it compared with memory.

A made-up log of numbers is written as Parquet parts, read with `memory_map=` in a process of its
own, whose anonymous memory (which the system cannot take back, unlike page cache) is looked at
every 10 ms, and trained on: mapped and in memory in turns, and mapped with the page cache dropped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow
import torch
import typer
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from spin_d3rlpy import DeviceReplayBuffer, FactoredIQL, from_table
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.runs.machine import describe_machine
from tests.measure.memory import Peak
from tests.measure.process_memory import array_bytes, resident_bytes
from tests.measure.speed import best_seconds

_RUN = "import sys; from tests.measure import mapped_log as m; m.run(*sys.argv[1:])"
EPISODE = 50  # rows
OTHERS = 5  # columns of episode, time, two actions and the reward
STEPS = 20  # of a turn


def reading(columns: int) -> dict[str, Any]:
    """Returns the arguments by which the log is read."""
    return {
        "observations": [f"x{i}" for i in range(columns - OTHERS)],
        "actions": ["a", "b"],
        "nvec": [3, 5],
        "reward": "reward",
        "episode": "episode",
        "time": "time",
    }


def write(folder: str, rows: str, columns: str, parts: str, kind: str) -> None:
    """Writes the log; some episodes continue in the next part."""
    rng = np.random.default_rng(0)
    edges = np.linspace(0, int(rows), int(parts) + 1).astype(int) + 7
    edges[0], edges[-1] = 0, int(rows)
    Path(folder).mkdir()
    for number in range(int(parts)):
        row = np.arange(edges[number], edges[number + 1])
        cells: dict[str, Any] = {
            "episode": row // EPISODE,
            "time": row % EPISODE,
            "a": rng.integers(0, 3, len(row)),
            "b": rng.integers(0, 5, len(row)),
            "reward": rng.normal(size=len(row)),
        }
        for i in range(int(columns) - OTHERS):  # every fifth holds whole numbers
            is_whole = i % 5 == 4
            cells[f"x{i}"] = (
                rng.integers(0, 1000, len(row)) if is_whole else rng.normal(size=len(row))
            )
        path = Path(folder, f"part-{number:05}.{kind}")
        table = pyarrow.table(cells)
        arrow_csv.write_csv(table, path) if kind == "csv" else parquet.write_table(table, path)
    print(json.dumps({"parts": int(parts)}))


def read(folder: str, columns: str, memory_map: str) -> None:
    """Reads the log in this process and prints what it took as JSON."""
    before, started = resident_bytes("RssAnon"), time.monotonic()
    peak = Peak("RssAnon")
    buffer = from_table(folder, memory_map=memory_map or None, **reading(int(columns)))
    measured = {
        "rows": buffer.source.count,
        "columns": int(columns),
        "table_mb": round(8 * buffer.source.count * int(columns) / 1e6),
        "arrays_mb": round(array_bytes(buffer) / 1e6),
        "seconds": round(time.monotonic() - started, 1),
        "peak_anonymous_mb": round((peak.stop() - before) / 1e6),
    }
    print(json.dumps(measured))


def _prepare_torch() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two wait for each other where another program has one of two cores


def _in_memory(buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
    """Returns the same dataset, with its arrays in memory."""
    tensors: dict[str, Any] = {
        name: value.clone()
        for name, value in vars(buffer.stored).items()
        if isinstance(value, torch.Tensor)
    }
    return buffer._with(dataclasses.replace(buffer.stored, map_in=None, **tensors))


def _steps(buffer: DeviceReplayBuffer, batch_size: int) -> Callable[[], None]:
    """Returns what does some steps of training."""
    algo = FactoredIQL(batch_size=batch_size)
    algo.build_with_dataset(buffer)

    def train() -> None:
        for _ in range(STEPS):
            algo.update(buffer.sample_transition_batch(batch_size))

    return train


def train(folder: str, columns: str, memory_map: str, batch_size: str) -> None:
    """Trains mapped and in memory in turns, and prints seconds of a step as JSON."""
    _prepare_torch()
    mapped = from_table(folder, memory_map=memory_map, **reading(int(columns)))
    ways = {"mapped": mapped, "in memory": _in_memory(mapped)}
    seconds = best_seconds(
        {name: _steps(buffer, int(batch_size)) for name, buffer in ways.items()}, turns=3
    )
    print(json.dumps({name: value / STEPS for name, value in seconds.items()}))


def train_cold(folder: str, columns: str, memory_map: str, batch_size: str) -> None:
    """Trains with nothing of the states in the page cache, and prints the same."""
    _prepare_torch()
    file = os.open(Path(memory_map, "observations.npy"), os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = from_table(folder, memory_map=memory_map, **reading(int(columns)))
    steps = _steps(mapped, int(batch_size))
    steps()  # what is done once
    best = float("inf")
    for _ in range(3):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        steps()
        best = min(best, time.perf_counter() - started)
    print(json.dumps({"mapped, cache dropped": best / STEPS}))


def run(work: str, *arguments: str) -> None:
    """Does one of the works above in this process."""
    works: dict[str, Callable[..., None]] = {
        "write": write,
        "read": read,
        "train": train,
        "train_cold": train_cold,
    }
    works[work](*arguments)


def _asked(work: str, *arguments: object) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "ignore", "-c", _RUN, work, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def run_mapped_log_benchmark(
    out: Path,
    rows: int,
    columns: int,
    parts: int,
    kind: str = "parquet",
    folder: Path | None = None,
    trains: bool = True,
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Writes the log, reads it, trains on it and writes a CSV file.

    Args:
        out: the file.
        rows: of the log.
        columns: of the log.
        parts: files that it is written to.
        kind: of the files, `"parquet"` or `"csv"`.
        folder: for everything else; a temporary one if None.
        trains: whether to train on it.
        log: gets the table as text.
    """
    machine = describe_machine()
    row: dict[str, Any] = {"files": f"{parts} of {kind}"}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        where, mapped = Path(temporary, "log"), Path(temporary, "map")
        _asked("write", where, rows, columns, parts, kind)
        row |= _asked("read", where, columns, mapped)
        log(str(row))
        if trains:
            for batch_size in (32, 256):
                common = (where, columns, mapped, batch_size)
                seconds = _asked("train", *common) | _asked("train_cold", *common)
                row[f"ms in memory, batch {batch_size}"] = f"{1000 * seconds['in memory']:.1f}"
                for way in ("mapped", "mapped, cache dropped"):
                    ratio = seconds[way] / seconds["in memory"]
                    row[f"{way}, batch {batch_size}"] = f"{ratio:.2f}"
    row["machine"] = f"{machine['machine']['platform']}, {machine['machine']['cpus']} CPUs"
    row["versions"] = " ".join(f"{k}={v}" for k, v in machine["versions"].items())
    log(format_table([{k: v for k, v in row.items() if k not in ("machine", "versions")}]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(out, [row])
    return [row]


def main(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("mapped_log.csv"),
    rows: Annotated[int, typer.Option(min=1000, help="Of the log.")] = 30_000_000,
    columns: Annotated[int, typer.Option(min=6, help="Of the log.")] = 60,
    parts: Annotated[int, typer.Option(min=1, help="Files of the log.")] = 30,
    kind: Annotated[str, typer.Option(help="Of the files: parquet or csv.")] = "parquet",
    folder: Annotated[
        Path | None, typer.Option(help="With 24 bytes for each cell; default: a temporary one.")
    ] = None,
    trains: Annotated[bool, typer.Option(help="Train on it, too.")] = True,
) -> None:
    """Measure reading a log larger than memory, and training steps on it compared with memory."""
    run_mapped_log_benchmark(out, rows, columns, parts, kind, folder, trains)


if __name__ == "__main__":
    typer.run(main)
