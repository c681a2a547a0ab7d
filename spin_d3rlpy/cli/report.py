"""`spin-d3rlpy report`: the page that says whether to use a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spin_d3rlpy.cli.options import (
    Device,
    Json,
    Progress,
    Trust,
    complete_datasets,
    emit,
    read_rule,
)
from spin_d3rlpy.cli.program import command, program


@command(
    program,
    "spin-d3rlpy report runs/x",
    "spin-d3rlpy report runs/x --dataset clinic/later-v0 --out later.html",
    "spin-d3rlpy report runs/x --rule rules.py:no_double_dose",
)
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished `train`.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="A log; default: the one of the training. One that it has not seen is better.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in the folder.")
    ] = None,
    gamma: Annotated[
        float | None, typer.Option(min=0, max=1, help="Discount; default: the algorithm's.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps of each Q function.")] = 1_000,
    soften: Annotated[
        float, typer.Option(help="Share of decisions that a trial leaves to whoever logged.")
    ] = 0.9,
    asm: Annotated[
        Path | None, typer.Option(help="Model of the log (any_order); default: a small one.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="<file>:<function>: what decisions must keep. The file is run."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of networks and draws.")] = 0,
    trust: Trust = False,
    device: Device = "cpu:0",
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Write one page: what a policy changes, what it is worth, where not to trust that."""
    from spin_d3rlpy.runs.report import ReportSettings
    from spin_d3rlpy.runs.report_page import write_report

    settings = ReportSettings(gamma=gamma, fqe_steps=steps, soften=soften, seed=seed)
    summary = write_report(
        folder,
        settings,
        out=out,
        dataset=dataset,
        asm=asm,
        rule=None if rule is None else read_rule(rule),
        device=device,
        trust=trust,
        show_progress=progress,
    )
    text = "\n".join([summary["finding"], *(f"- {doubt}" for doubt in summary["doubts"])])
    emit(json, summary, f"{text}\nWritten: {summary['file']}")
