"""`spin-d3rlpy plot`: figures of trainings and datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from spin_d3rlpy.cli.options import Device, Json, LocalDataset, complete_policies, emit
from spin_d3rlpy.cli.program import command, group

app = group("plot", "Figures of trainings and datasets (.png, .pdf or .svg).")
X_LABELS = {"step": "gradient steps", "seconds": "seconds of training"}


@command(
    app,
    "spin-d3rlpy plot curves runs/spin-0 runs/spin-1 runs/factored-0",
    "spin-d3rlpy plot curves runs --metric critic_loss --out losses.svg",
    "spin-d3rlpy plot curves runs --x seconds",
    "spin-d3rlpy plot curves runs/asm --metric validation_slot_accuracy_at_0.15",
)
def curves(
    folders: Annotated[list[Path], typer.Argument(help="Folders of (pre-)trainings, or above.")],
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("curves.png"),
    metric: Annotated[str, typer.Option(help="Column of curve.csv.")] = "return",
    x: Annotated[
        Literal["step", "seconds"],
        typer.Option(help="Gradient steps, or seconds of training (evaluations left out)."),
    ] = "step",
    json: Json = False,
) -> None:
    """Draw learning curves: a panel per dataset, a line per method, a band over its seeds."""
    from spin_d3rlpy.runs.curves import find_runs, read_curves
    from spin_d3rlpy.runs.plots import plot_curve_panels
    from spin_envs import reference_scores

    panels = read_curves(find_runs(folders), metric, x)
    lines = {}
    if metric == "return":
        scores = {name: reference_scores(name) for name in panels if name.startswith("spin/")}
        lines = {name: {"published expert": s[1]} for name, s in scores.items() if s is not None}
    plot_curve_panels(out, panels, metric.replace("_", " "), lines, X_LABELS[x])
    seeds_by_method = {
        dataset: {label: len(curve.returns) for label, curve in methods.items()}
        for dataset, methods in panels.items()
    }
    text = [
        f"{dataset}: {label}, {n} seeds"
        for dataset, counts in seeds_by_method.items()
        for label, n in counts.items()
    ]
    emit(json, {"file": str(out), "seeds": seeds_by_method}, "\n".join([*text, f"drawn in {out}"]))


@command(
    app,
    "spin-d3rlpy plot actions spin/cheetah-run-b3/medium-v0",
    "spin-d3rlpy plot actions spin/cheetah-run-b3/medium-v0 --policy run",
)
def actions(
    name: LocalDataset,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Also draw a policy's; repeatable.", autocompletion=complete_policies),
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("actions.png"),
    device: Device = "cpu:0",
    json: Json = False,
) -> None:
    """Draw how often each choice of each slot is taken."""
    import numpy as np

    from spin_d3rlpy.data import DeviceReplayBuffer
    from spin_d3rlpy.data.loader import open_local
    from spin_d3rlpy.evaluation.metrics import action_marginals
    from spin_d3rlpy.nvec import require_same_nvec
    from spin_d3rlpy.runs.plots import plot_action_marginals
    from spin_d3rlpy.runs.policy import open_policy

    buffer = DeviceReplayBuffer.from_minari(open_local(name))
    marginals = {"the data": action_marginals(buffer.actions.numpy(), buffer.nvec)}
    for source in policy or []:
        opened = open_policy(source, device)
        require_same_nvec(opened.nvec or buffer.nvec, buffer.nvec, source, "the dataset")
        seen = buffer.seen_by(opened.actor)
        states = map(seen.observations_at, buffer.observation_index.split(4096))
        chosen = np.concatenate([opened.actor.predict(chunk.numpy()) for chunk in states])
        marginals[f"{source}, greedy"] = action_marginals(chosen, buffer.nvec)
    plot_action_marginals(out, marginals, name)
    shares = {
        source: [row[:n].tolist() for row, n in zip(rows, buffer.nvec, strict=True)]
        for source, rows in marginals.items()
    }
    emit(json, {"file": str(out), "shares": shares}, f"drawn in {out}")
