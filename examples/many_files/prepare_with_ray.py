"""A log in many files, prepared by Ray Data in two processes, and trained on.

A patient's visits are spread over all CSV files, and some temperatures are in Fahrenheit. Ray Data
converts units, sorts by patient and day, and writes Parquet files, which `from_table` reads as one
log whose arrays it keeps in a folder. Needs `pip install 'ray[data]' 'spin-d3rlpy[parquet]'`.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from d3rlpy.logging import NoopAdapterFactory
from visits import write_visits

from spin_d3rlpy import FactoredIQL, from_table
from spin_d3rlpy.files.results import format_table, write_csv


def in_celsius(batch: dict[str, Any]) -> dict[str, Any]:
    """Converts a batch's temperatures; the worker processes call it."""
    temperature, unit = batch["temperature"], batch.pop("unit")
    batch["temperature"] = np.where(unit == "F", (temperature - 32.0) / 1.8, temperature)
    return batch


def main(args: argparse.Namespace) -> None:
    seconds = {"started": time.monotonic()}
    with tempfile.TemporaryDirectory() as temporary:
        work = args.folder or Path(temporary)
        write_visits(work / "csv", args.patients, args.files)
        seconds["write CSV files"] = time.monotonic()

        ray.init(num_cpus=args.processes, include_dashboard=False, log_to_driver=False)
        visits = ray.data.read_csv(str(work / "csv")).map_batches(in_celsius)
        visits.sort(["patient", "day"]).write_parquet(str(work / "parts"))
        ray.shutdown()
        seconds["prepare with Ray Data"] = time.monotonic()

        dataset = from_table(
            work / "parts",
            observations=["temperature", "pulse"],
            actions=["dose", "drug"],
            nvec=[3, 2],
            reward="outcome",
            episode="patient",
            time="day",
            memory_map=work / "log",
        )
        seconds["read as one log"] = time.monotonic()
        no_log: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
        steps: Any = {"n_steps": args.steps, "n_steps_per_epoch": args.steps}
        FactoredIQL().fit(dataset, **steps, **no_log)
        seconds["train"] = time.monotonic()
    took = np.diff(list(seconds.values())).round(1).tolist()
    counts = {"rows": dataset.transition_count, "episodes": dataset.size(), "steps": args.steps}
    table = [{"work": w, "s": s, **counts} for w, s in zip([*seconds][1:], took, strict=True)]
    write_csv(args.out, table)
    print(format_table(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for the files; default: a temporary one")
    parser.add_argument("--patients", type=int, default=50_000, help="in the made-up log")
    parser.add_argument("--files", type=int, default=8, help="CSV files that it is in")
    parser.add_argument("--processes", type=int, default=2, help="of Ray Data")
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--out", type=Path, default=Path("prepare_with_ray.csv"), help="CSV file")
    main(parser.parse_args())
