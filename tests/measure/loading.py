"""Loading a dataset by this package, by iterating over Minari's episodes and by d3rlpy.

The three take turns in one process; the fastest turn of each counts, and its ratio to ours. Peak
memory is that of a process which does nothing else, beyond what it holds when it begins, over the
size of the arrays that training needs. (d3rlpy's own loader puts observations next to the wrong
actions; here it only counts what it costs.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import minari
import typer
from minari import MinariDataset

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_dataset
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.runs.machine import describe_machine
from tests.measure.process_memory import array_bytes, resident_bytes
from tests.measure.speed import best_seconds

DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
# What a way of loading leaves in memory is returned, so that it is there when peaks are read.
WAYS: dict[str, Callable[[MinariDataset], Any]] = {
    "spin_d3rlpy": DeviceReplayBuffer.from_minari,
    "minari episodes": lambda dataset: [None for _ in dataset],
    "d3rlpy get_minari": lambda dataset: d3rlpy.datasets.get_minari(dataset.id),
}
_OURS = "spin_d3rlpy"
_PEAK = "import sys; from tests.measure import loading; loading.print_peak(*sys.argv[1:])"


def rows(dataset: MinariDataset, turns: int = 5) -> list[dict[str, Any]]:
    """Measures all ways of loading a dataset that is in Minari's local folder."""
    size = array_bytes(DeviceReplayBuffer.from_minari(dataset))
    steps = {name: (lambda load=load: load(dataset)) for name, load in WAYS.items()}
    seconds = best_seconds(steps, turns)
    machine = describe_machine()
    return [
        {
            "way": name,
            "dataset": dataset.id,
            "transitions": dataset.total_steps,
            "seconds": f"{seconds[name]:.3f}",
            "times_ours": f"{seconds[name] / seconds[_OURS]:.2f}",
            "array_bytes": size,
            "peak_over_arrays": f"{peak_bytes(name, dataset.id) / size:.2f}",
            "turns": turns,
            "machine": f"{machine['machine']['platform']}, {machine['machine']['cpus']} CPUs",
            "versions": " ".join(f"{k}={v}" for k, v in machine["versions"].items()),
        }
        for name in WAYS
    ]


def peak_bytes(way: str, dataset: str) -> int:
    """Returns the most memory that loading takes in a process of its own."""
    path = os.pathsep.join(p for p in sys.path if p)
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PEAK, way, dataset],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    return int(json.loads(asked.stdout.splitlines()[-1]))


def print_peak(way: str, name: str) -> None:
    """Measures one way of loading in this process and prints the bytes as JSON."""
    dataset = minari.load_dataset(name)
    # What is imported and allocated on first use is not part of loading.
    DeviceReplayBuffer.from_minari(dataset, max_episodes=1)
    before = resident_bytes("VmRSS")
    loaded = WAYS[way](dataset)
    print(json.dumps(resident_bytes("VmHWM") - before))
    del loaded


def run_loading_benchmark(
    out: Path, size: int | None = None, turns: int = 5, log: Callable[[str], None] = print
) -> None:
    """Builds the dataset if it is not there, measures and writes a CSV file.

    Args:
        out: the file.
        size: transitions; the published 200,000 if None.
        turns: of each way.
        log: gets the table as text.
    """
    measured = rows(open_dataset(DATASET, size), turns)
    shown = ("way", "transitions", "seconds", "times_ours", "peak_over_arrays")
    log(format_table([{k: row[k] for k in shown} for row in measured]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(out, measured)


def main(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("loading.csv"),
    size: Annotated[int | None, typer.Option(help="Transitions; default: 200,000.")] = None,
) -> None:
    """Time loading compared with Minari's episodes and d3rlpy's loader, and measure its memory."""
    run_loading_benchmark(out, size)


if __name__ == "__main__":
    typer.run(main)
