"""The table of this machine's datasets: what is in them and what they cost.

Run with `python -m tests.measure.datasets [--out FILE.csv]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import minari
import typer

from spin_d3rlpy.data.minari.specs import LEVELS, NAMESPACE
from spin_d3rlpy.data.minari.staging import dataset_bytes
from spin_d3rlpy.files.results import format_table, write_csv
from spin_envs import normalized_score, reference_scores
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

_NAME = re.compile(rf"{NAMESPACE}(?P<task>{TASK_NAME_PATTERN})/(?P<level>[-\w]+)-v\d+")


def table_rows() -> list[dict[str, Any]]:
    """Returns one row for each `spin/...` dataset in Minari's local folder that has a record.

    Returns are undiscounted, of episodes; the normalized score is 0 for a random policy and 100
    for the published expert. Seconds are empty for what was not built.
    """
    local = minari.list_local_datasets(prefix=NAMESPACE)
    names = [n for n, record in local.items() if _NAME.fullmatch(n) and "returns" in record]
    return [_row(name, local[name]) for name in sorted(names, key=_order)]


def _order(name: str) -> tuple[BenchmarkTask, int, str]:
    task, level = _split(name)
    return task, list(LEVELS).index(level) if level in LEVELS else len(LEVELS), level


def _split(name: str) -> tuple[BenchmarkTask, str]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return BenchmarkTask.parse(match["task"]), match["level"]


def _row(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    task, level = _split(name)
    returns = record["returns"]
    known = reference_scores(name) is not None
    return {
        "dataset": name,
        "task": task.task,
        "bins": task.number if "bins" in task.env_kwargs else "",
        "actuators": task.env_kwargs.get("actuators", ""),
        "level": level,
        "episodes": record["total_episodes"],
        "transitions": record["total_steps"],
        **{f"{k}_return": f"{returns[k]:.2f}" for k in ("mean", "std", "min", "max")},
        "normalized_score": f"{normalized_score(name, returns['mean']):.2f}" if known else "",
        "bytes": dataset_bytes(minari.load_dataset(name)),
        "build_seconds": record.get("build_seconds", ""),
        "checksum": record.get("checksum", ""),
    }


def main(out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("datasets.csv")) -> None:
    """Write composition, returns, size and build time of this machine's datasets."""
    rows = table_rows()
    if not rows:
        raise ValueError("There are no spin/... datasets on this machine: spin-d3rlpy data build.")
    write_csv(out, rows)
    print(format_table([{k: v for k, v in row.items() if k != "checksum"} for row in rows]))


if __name__ == "__main__":
    typer.run(main)
