"""Memory that training on a large dataset takes, compared with the size of the dataset's arrays.

A made-up dataset of dog-trot's shape is written to a temporary folder, and each way of training on
it runs in a process of its own: loading, fitting an observation scaler, pre-training, updates and
checkpoints. Memory is counted beyond what the process holds after the same on one episode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import minari
import numpy as np
import typer
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler
from gymnasium.spaces import Box, MultiDiscrete
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from spin_d3rlpy.algos import SPINIQL, FactoredIQL
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.policies import SPIN
from spin_d3rlpy.runs.machine import describe_machine
from tests.algos.problems import new_algorithm
from tests.measure.process_memory import array_bytes, resident_bytes

# What the processes that are measured run.
_WRITE = "import sys; from tests.measure import memory as m; m.write(*sys.argv[1:])"
_MEASURE = "import sys; from tests.measure import memory as m; m.print_measured(*sys.argv[1:])"
NAME = "spin-bench/large-v0"
FEATURES, NVEC, EPISODE = 223, [3] * 38, 1000  # dog-trot's
N_STEPS, N_PRETRAINING = 200, 20
WAYS = ("in memory", "mapped")


def write_dataset(transitions: int, features: int = FEATURES, seed: int = 0) -> None:
    """Writes made-up episodes as the Minari dataset `NAME`, one at a time."""
    folder = Path(get_dataset_path(NAME), "data")
    folder.parent.mkdir(parents=True)
    storage = MinariStorage.new(
        folder, Box(-np.inf, np.inf, (features,), np.float32), MultiDiscrete(NVEC)
    )
    storage.update_metadata({"dataset_id": NAME, "minari_version": minari.__version__})
    rng = np.random.default_rng(seed)
    ends = np.zeros((2, EPISODE), bool)
    ends[1, -1] = True
    for _ in range(-(-transitions // EPISODE)):
        episode = EpisodeBuffer(
            observations=rng.random((EPISODE + 1, features), dtype=np.float32),
            actions=rng.integers(3, size=(EPISODE, len(NVEC)), dtype=np.int8),
            rewards=rng.random(EPISODE, dtype=np.float32),
            terminations=ends[0],
            truncations=ends[1],
            infos={},
        )
        storage.update_episodes([episode])


class Peak:
    """The most that was held in memory since the start, looked at every 10 ms."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._over = threading.Event()
        self.bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.bytes = max(self.bytes, resident_bytes(self._field))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.bytes


def measure(way: str, folder: Path) -> dict[str, Any]:
    """Trains on the dataset in this process and returns what it took."""
    dataset = open_local(NAME)
    map_in = folder if way == "mapped" else None

    def train(max_episodes: int | None, checkpoints: Path) -> DeviceReplayBuffer:
        buffer = DeviceReplayBuffer.from_minari(dataset, max_episodes, map_in=map_in)
        common: dict[str, Any] = {
            "logger_adapter": NoopAdapterFactory(),
            "show_progress": False,
            "n_steps": N_STEPS,
            "checkpoint_interval": N_STEPS // 2,
        }
        d3rlpy.seed(0)
        transformer = TransformerConfig(width=64, n_blocks=1, head_hidden=64)
        new_algorithm(
            SPINIQL,
            observation_scaler=StandardObservationScaler(),
            policy=SPIN(transformer=transformer),
            pretraining=PretrainingConfig(batch_size=256, max_updates=N_PRETRAINING),
        ).fit(buffer, checkpoint_dir=checkpoints / "spin", **common)
        FactoredIQL().fit(buffer, checkpoint_dir=checkpoints / "factored", **common)
        return buffer

    train(1, folder / "once")  # imports, allocations on first use, the algorithms themselves
    before = {field: resident_bytes(field) for field in ("VmRSS", "RssAnon")}
    started = time.monotonic()
    peaks = {field: Peak(field) for field in before}
    buffer = train(None, folder / "all")
    over = {field: peak.stop() - before[field] for field, peak in peaks.items()}
    size = array_bytes(buffer)
    return {
        "way": way,
        "transitions": buffer.transition_count,
        "features": buffer.observations.shape[1],
        "array_mb": round(size / 1e6),
        "peak_resident_mb": round(over["VmRSS"] / 1e6),
        "peak_resident_over_arrays": round(over["VmRSS"] / size, 3),
        "peak_anonymous_mb": round(over["RssAnon"] / 1e6),
        "seconds": round(time.monotonic() - started, 1),
    }


def write(transitions: str, features: str) -> None:
    """Writes the dataset in this process."""
    write_dataset(int(transitions), int(features))


def print_measured(way: str, folder: str) -> None:
    """Measures one way of training in this process and prints the row as JSON."""
    print(json.dumps(measure(way, Path(folder))))


def run_memory_benchmark(
    out: Path,
    transitions: int = 2_000_000,
    features: int = FEATURES,
    folder: Path | None = None,
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Writes the dataset, trains on it each way and writes a CSV file.

    Args:
        out: the file.
        transitions: of the dataset, in episodes of 1,000.
        features: length of an observation.
        folder: for the dataset (4 bytes times both, and as much again for the map); a temporary
            one if None.
        log: gets the table as text.
    """
    machine = describe_machine()
    path = os.pathsep.join(p for p in sys.path if p)
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        env = {**os.environ, "MINARI_DATASETS_PATH": temporary, "PYTHONPATH": path}
        command = [sys.executable, "-W", "ignore", "-c"]
        sizes = [str(transitions), str(features)]
        subprocess.run([*command, _WRITE, *sizes], check=True, env=env)
        for way in WAYS:
            work = Path(temporary, way.replace(" ", "_"))
            work.mkdir()
            asked = subprocess.run(
                [*command, _MEASURE, way, str(work)], check=True, stdout=subprocess.PIPE, env=env
            )
            rows.append(json.loads(asked.stdout.splitlines()[-1]))
    for row in rows:
        row["machine"] = f"{machine['machine']['platform']}, {machine['machine']['cpus']} CPUs"
        row["versions"] = " ".join(f"{k}={v}" for k, v in machine["versions"].items())
    hidden = ("machine", "versions")
    log(format_table([{k: v for k, v in row.items() if k not in hidden} for row in rows]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(out, rows)
    return rows


def main(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("memory.csv"),
    transitions: Annotated[int, typer.Option(min=1000, help="In episodes of 1,000.")] = 2_000_000,
    features: Annotated[int, typer.Option(min=1, help="Length of an observation.")] = FEATURES,
    folder: Annotated[
        Path | None, typer.Option(help="For the dataset; default: a temporary folder.")
    ] = None,
) -> None:
    """Measure what training on a large made-up dataset takes, in memory and mapped."""
    run_memory_benchmark(out, transitions, features, folder)


if __name__ == "__main__":
    typer.run(main)
