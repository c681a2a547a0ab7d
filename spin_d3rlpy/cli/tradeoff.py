"""`spin-d3rlpy tradeoff`: what can be had of one reward for another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from spin_d3rlpy.cli.options import Dataset, Device, Json, Progress, Trust, emit
from spin_d3rlpy.cli.program import command, program


@command(
    program,
    "spin-d3rlpy tradeoff shop/contacts-v0 --rewards revenue,-complaints",
    "spin-d3rlpy tradeoff shop/contacts-v0 --rewards revenue,-complaints "
    '--limit "complaints <= today" --seconds 120 --out careful',
)
def tradeoff(
    log: Dataset,
    rewards: Annotated[
        str, typer.Option(help="Of the log; a minus in front of those of which less is better.")
    ],
    limit: Annotated[
        list[str] | None,
        typer.Option(help="'complaints <= today', or a number, 'per decision' or not; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("tradeoff"),
    seconds: Annotated[float, typer.Option(min=1, help="Of training.")] = 60.0,
    clock: Annotated[
        Literal["wall", "cpu", "ops"], typer.Option(help="wall, cpu or ops, see `train`.")
    ] = "wall",
    points: Annotated[int, typer.Option(min=2, help="Weightings.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps of each evaluation.")] = 1_000,
    held_out: Annotated[
        float, typer.Option(help="Share of the episodes that policies are estimated from.")
    ] = 0.3,
    gamma: Annotated[float, typer.Option(help="Discount of a decision.")] = 1.0,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Device = "cpu:0",
    trust: Trust = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Train once, and draw what policies of all weightings of the rewards return.

    One page (tradeoff.html), the numbers (curve.csv) and the delivered policy, which keeps the
    limits by its whole interval.
    """
    from spin_d3rlpy.runs.trade_off import TradeOffSettings, parse_directions, run_trade_off

    settings = TradeOffSettings(
        log=log,
        directions=parse_directions(rewards),
        limits=limit or [],
        seconds=seconds,
        clock=clock,
        held_out_share=held_out,
        n=points,
        gamma=gamma,
        n_steps=steps,
        level=level,
        seed=seed,
    )
    found = run_trade_off(settings, out, device=device, trust=trust, show_progress=progress)
    emit(json, found, f"{found['finding']}\nWritten: {found['page']}")
