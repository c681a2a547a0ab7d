"""The paper's experiments: list, run and report them.

From a checkout:

python -m examples.paper list
python -m examples.paper run early --preset cpu --task cheetah-run
python -m examples.paper report early --preset cpu --task cheetah-run
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spin_d3rlpy.cli.options import (
    Config,
    ConfiguredDevice,
    Json,
    PrintConfig,
    Progress,
    configured,
    emit,
    log,
    nested_fields,
    print_settings,
)
from spin_d3rlpy.cli.program import run_program, set_log

if TYPE_CHECKING:  # help needs no torch
    from examples.paper.catalog import PaperSettings

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(help=__doc__.partition("\n")[0])(set_log)

Experiments = Annotated[list[str] | None, typer.Argument(help="See `list`.")]
Scaling = Annotated[str | None, typer.Option("--preset", help="paper, cpu (default) or smoke.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ...; default: the preset's.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Part of datasets' names.")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method's label, or a part of several.")
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="E.g. seconds=60, clock=ops.")]
Folder = Annotated[Path, typer.Option(help="Folder of the jobs; finished ones are kept.")]


@app.command("list")
def list_experiments(json: Json = False) -> None:
    """List experiments and how many cells they have per seed."""
    from examples.paper.catalog import EXPERIMENTS
    from examples.paper.specs import SCALES

    rows = [
        {
            "name": name,
            "cells_per_seed": len(experiment.jobs(SCALES["paper"], [0], "cpu:0")),
            "title": experiment.title,
        }
        for name, experiment in EXPERIMENTS.items()
    ]
    lines = [f"{r['name']:12} {r['cells_per_seed']:3} cells per seed  {r['title']}" for r in rows]
    emit(json, rows, "\n".join(lines))


@app.command()
def run(
    names: Experiments = None,
    preset: Scaling = None,
    changes: Changes = None,
    seeds: Seeds = None,
    task: Tasks = None,
    method: Methods = None,
    folder: Folder = Path("spin-paper"),
    device: ConfiguredDevice = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Runs the jobs.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="local: jobs at once; default: all cores, or GPUs.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="ray: default: this machine.")] = None,
    cpus: Annotated[int, typer.Option(min=1, help="ray: cores per job.")] = 1,
    config: Config = None,
    print_config: PrintConfig = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Run experiments, each cell in its own process; resumes when called again.

    Exit code 1 if a job failed.
    """
    from examples.paper.engines import LocalEngine, RayEngine
    from examples.paper.grid import run_grid
    from examples.paper.settings import outdated

    selected = {"experiments": names, "preset": preset, "tasks": task, "methods": method}
    settings = _settings(config, changes, seeds=seeds, device=device, **selected)
    if print_config:
        print_settings(settings)
        return
    jobs = settings.jobs()
    if not jobs:
        raise ValueError(
            "No cell matches --task and --method. `python -m examples.paper list` shows the "
            "experiments, `run ... --print-config` what was asked for."
        )
    on_gpu = settings.device.startswith("cuda")
    gpus = [int(settings.device.partition(":")[2] or 0)] if on_gpu else []
    runs = RayEngine(address, cpus, len(gpus)) if engine == "ray" else LocalEngine(workers, gpus)
    failed = run_grid(jobs, folder, runs, progress)
    for job in failed:
        log(f"failed: {folder / job.name} (see error.txt)")
    old = outdated(folder, jobs)
    for name, fields in old.items():
        log(
            f"of another recipe: {folder / name} has other values of {', '.join(fields)} than "
            "today's; remove the folder to run it again"
        )
    result = {
        "folder": str(folder),
        "cells": len(jobs),
        "failed": [job.name for job in failed],
        "of_another_recipe": list(old),
    }
    emit(json, result, f"{len(jobs)} cells in {folder}, {len(failed)} jobs failed")
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    names: Experiments = None,
    preset: Scaling = None,
    changes: Changes = None,
    seeds: Seeds = None,
    task: Tasks = None,
    method: Methods = None,
    folder: Folder = Path("spin-paper"),
    device: ConfiguredDevice = None,
    out: Annotated[Path, typer.Option(help="Output folder of the report.")] = Path("spin-report"),
    config: Config = None,
    json: Json = False,
) -> None:
    """Write tables and curves of finished cells as CSV, PNG and one HTML file.

    Takes the options of `run`; all experiments if none are named.
    """
    from examples.paper.catalog import EXPERIMENTS
    from examples.paper.report import write_report

    if names is None and config is None:
        names = list(EXPERIMENTS)
    selected = {"experiments": names, "preset": preset, "tasks": task, "methods": method}
    settings = _settings(config, changes, seeds=seeds, device=device, **selected)
    files = write_report(folder, out, settings)
    emit(json, [str(file) for file in files], "\n".join(map(str, files)))


def _settings(config: Path | None, changes: list[str] | None, **options: Any) -> PaperSettings:
    from examples.paper.catalog import PaperSettings
    from spin_d3rlpy.files.yaml_settings import create

    # Typer may give an empty list where nothing was given.
    given = {name: None if value == [] else value for name, value in options.items()}
    values, source = configured(config, scale=nested_fields(changes), **given)
    return create(PaperSettings, values, source).complete()


if __name__ == "__main__":
    run_program(app)
