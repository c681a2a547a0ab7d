"""`spin-d3rlpy behaviour`: training of the policies that datasets are made with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spin_d3rlpy.cli.options import Json, emit
from spin_d3rlpy.cli.program import command, group

app = group("behaviour", "Behavior policies: train them, see what the shipped ones score.")


@command(app, "spin-d3rlpy behaviour train maze-a10 --level medium")
def train(
    task: Annotated[str, typer.Argument(help="E.g. cheetah-run-b3 or maze-a10.")],
    level: Annotated[str, typer.Option(help="medium or expert.")] = "expert",
    out: Annotated[Path, typer.Option(help="Folder of checkpoint and snapshots.")] = Path("runs"),
) -> None:
    """Train a behavior policy (resumes a run that was stopped) and select a snapshot."""
    from spin_d3rlpy.behavior import make_trainer
    from spin_d3rlpy.behavior.recipes import get_recipe
    from spin_d3rlpy.behavior.selection import select_policy

    recipe = get_recipe(f"{task}-{level}")
    folder = out / recipe.name
    make_trainer(recipe, folder).train()
    typer.echo(f"Selected: {select_policy(recipe, folder, folder)}")


@command(app)
def table(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("policies.csv"),
    json: Json = False,
) -> None:
    """Write returns and training costs of the shipped behavior policies as CSV."""
    from spin_d3rlpy.behavior.shipped import policy_rows
    from spin_d3rlpy.reports import format_table, write_csv

    rows = policy_rows()
    write_csv(out, rows)
    emit(json, rows, format_table(rows))
