"""Trains behavior policies and reports the shipped ones.

From a checkout:

python -m examples.behavior_policies train maze-a10 --level medium python -m
examples.behavior_policies table python -m examples.behavior_policies plot cheetah-run-b3 maze-a10
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from examples.behavior_policies import make_trainer
from examples.behavior_policies.recipes import get_recipe
from examples.behavior_policies.selection import select_policy
from examples.behavior_policies.shipped import learning_curves, policy_rows
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.runs.plots import plot_curve_panels

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="E.g. cheetah-run-b3 or maze-a10.")],
    level: Annotated[str, typer.Option(help="medium or expert.")] = "expert",
    out: Annotated[Path, typer.Option(help="Folder of checkpoint and snapshots.")] = Path("runs"),
) -> None:
    """Train a behavior policy (resumes a run that was stopped) and select a snapshot."""
    recipe = get_recipe(f"{task}-{level}")
    folder = out / recipe.name
    make_trainer(recipe, folder).train()
    print(f"Selected: {select_policy(recipe, folder, folder)}")


@app.command()
def table(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("policies.csv"),
) -> None:
    """Write returns and training costs of the shipped behavior policies as CSV."""
    rows = policy_rows()
    write_csv(out, rows)
    print(format_table(rows))


@app.command()
def plot(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="E.g. cheetah-run-b3; all if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("behavior.png"),
) -> None:
    """Draw how the shipped behavior policies were trained: a panel per task, a line per level."""
    curves, targets = learning_curves(tasks or ())
    plot_curve_panels(out, curves, "mean return", targets, "environment steps")
    print(f"Drawn in {out}.")


if __name__ == "__main__":
    app()
