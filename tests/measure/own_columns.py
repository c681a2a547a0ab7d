"""Which columns the data of 76 tasks and of CoNE say are of which slots, and how surely.

python -m tests.measure.own_columns collectors spin/cone-d8-p50/mixed-v0 --out found.csv
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.files.yaml_settings import check_name
from spin_d3rlpy.policies import own_columns
from tests.measure.switch import dataset_of
from tests.measure.tasks import TASKS


def asked(name: str, seed: int, size: int | None) -> dict[str, Any]:
    """Returns what is found of a task's log or a dataset, and what the probe measured."""
    if "/" in name:
        buffer, _ = load_dataset(name, size=size, progress=False)
    else:
        buffer, _ = dataset_of(TASKS[name](), seed)
    row: dict[str, Any] = {
        "task": name,
        "rows": buffer.transition_count,
        "numbers": buffer.observation_size,
        "slots": len(buffer.nvec),
    }
    begun, answer = time.process_time(), own_columns.ask(buffer)
    if answer is None:
        return row
    less = answer.of_all - answer.of_own
    told = answer.of_nothing - float(answer.of_own.mean())
    error = float(less.std()) / len(less) ** 0.5
    grouping = answer.grouping
    return row | {
        "nats_by_nothing": f"{answer.of_nothing:.4f}",
        "by_whole_observation": f"{float(answer.of_all.mean()):.4f}",
        "by_own_columns": f"{float(answer.of_own.mean()):.4f}",
        "less_of_told": f"{float(less.mean()) / told:.3f}" if told > 0.0 else "",
        "standard_errors": f"{float(less.mean()) / error:.1f}",
        "is_used": answer.is_used,
        "first_thing": " ".join(map(str, grouping.things[0])),
        "second_thing": " ".join(map(str, grouping.things[1])),
        "objects": len(grouping.objects),
        "first_object": " ".join(map(str, grouping.objects[0])) if grouping.objects else "",
        "cpu_seconds": f"{time.process_time() - begun:.1f}",
    }


def main(
    tasks: Annotated[list[str] | None, typer.Argument(help="And datasets; default: all.")] = None,
    out: Annotated[Path, typer.Option(help="The CSV.")] = Path("own_columns_found.csv"),
    seed: Annotated[int, typer.Option(help="Of the logs.")] = 2,
    size: Annotated[int | None, typer.Option(help="Transitions of datasets.")] = None,
) -> None:
    """Ask the data of tasks which columns are of which slots."""
    for name in tasks or ():
        if "/" not in name:
            check_name(name, list(TASKS), "tasks")
    rows = []
    for name in tasks or TASKS:
        rows.append(asked(name, seed, size))
        print(*rows[-1].values(), flush=True)
        write_csv(out, rows)


if __name__ == "__main__":
    typer.run(main)
