"""`spin-d3rlpy demo`, `pretrain` and `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spin_d3rlpy.cli.options import (
    BinsOfActions,
    Config,
    ConfiguredDataset,
    ConfiguredDevice,
    Device,
    Jobs,
    Json,
    PrintConfig,
    Progress,
    Recipe,
    Size,
    Trust,
    complete_algorithms,
    configured,
    emit,
    log,
    nested_fields,
    print_settings,
)
from spin_d3rlpy.cli.program import command, program

RunFolder = Annotated[Path, typer.Option(help="Folder of the run; an interrupted run resumes.")]
Fields = Annotated[
    list[str] | None, typer.Option("--set", help="A field, e.g. transformer.width=64; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="Of networks and mini-batches; default: 0.")]


@command(
    program,
    "spin-d3rlpy demo",
    "spin-d3rlpy demo --task robot --out demo-of-a-robot",
    "spin-d3rlpy demo --minutes 1 --seed 1 --out another-demo",
)
def demo(
    task: Annotated[str, typer.Option(help="couriers or robot.")] = "couriers",
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("spin-demo"),
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Of training per algorithm; couriers': nominal ones."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of networks and mini-batches.")] = 0,
    size: Size = None,
    device: Device = "cpu:0",
    jobs: Jobs = None,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Train SPIN and factored IQL on one dataset and compare them, in minutes on a CPU.

    Couriers who choose among orders (the default), or a robot that learns to run.
    """
    from spin_d3rlpy.demo import run_demo

    rows = run_demo(
        out,
        task,
        minutes=minutes,
        seed=seed,
        size=size,
        device=device,
        jobs=jobs,
        show_progress=progress,
        log=log if json else typer.echo,
    )
    if json:
        emit(True, rows, "")


@command(
    program,
    "spin-d3rlpy pretrain spin/cheetah-run-b3/medium-expert-v0 --updates 5000 --out asm",
    "spin-d3rlpy pretrain spin/cheetah-run-b3/medium-v0 --set pretraining.mask_prob_max=1.0",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-expert-v0 --asm asm/asm.safetensors",
)
def pretrain(
    dataset: ConfiguredDataset = None,
    out: RunFolder = Path("asm"),
    recipe: Recipe = None,
    objective: Annotated[
        str | None, typer.Option(help="masked (default), variational or contrastive.")
    ] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Gradient steps at most.")] = None,
    fields: Fields = None,
    size: Size = None,
    bins: BinsOfActions = None,
    seed: Seed = None,
    device: ConfiguredDevice = None,
    config: Config = None,
    print_config: PrintConfig = False,
    trust: Trust = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Pre-train an Action Structure Model (asm.safetensors) for several trainings.

    Fields are those of PretrainingConfig and TransformerConfig.
    """
    from spin_d3rlpy.files.yaml_settings import merge
    from spin_d3rlpy.runs.settings import pretrain_settings
    from spin_d3rlpy.runs.training import run_pretraining

    given, _ = configured(None, objective=objective, max_updates=updates)
    values, source = configured(
        config,
        dataset=dataset,
        recipe=recipe or (None if config else "tuned"),
        size=size,
        bins=bins,
        seed=seed,
        device=device,
        pretraining=given or None,
    )
    settings = pretrain_settings(merge(values, nested_fields(fields) or {}), source)
    if print_config:
        print_settings(settings)
        return
    result = run_pretraining(out, settings, progress, trust)
    emit(
        json,
        result,
        f"{result['asm']}: {result['step']:,} updates, {result['samples']:,} samples, "
        f"{result['seconds']:.0f} s; loss {result['loss']:.4f}, accuracy {result['accuracy']:.3f}",
    )


@command(
    program,
    "spin-d3rlpy train spin/cheetah-run-b3/medium-expert-v0 --out runs/spin-0",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-expert-v0 --algorithm FactoredIQL --seed 1",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-v0 --set query_init=mask --set head_init=asm",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-v0 --recipe published --print-config > a.yaml",
    "spin-d3rlpy train me/car-v0 --bins wheel=quantiles:7",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-v0 --seeds 0,1,2 --out runs/three",
    "spin-d3rlpy train --config a.yaml --device cuda:0 --out runs/paper",
)
def train(
    dataset: ConfiguredDataset = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Default: SPINIDQL.", autocompletion=complete_algorithms)
    ] = None,
    out: RunFolder = Path("run"),
    recipe: Recipe = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Gradient steps.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Training time instead of steps, pre-training included."),
    ] = None,
    steps_per_epoch: Annotated[
        int | None, typer.Option(min=1, help="Between evaluations; default: a tenth of all.")
    ] = None,
    asm: Annotated[str | None, typer.Option(help="File of a pre-trained model.")] = None,
    fields: Fields = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Per evaluation.")] = None,
    mode: Annotated[str | None, typer.Option(help="greedy (default) or sample.")] = None,
    size: Size = None,
    bins: BinsOfActions = None,
    seed: Seed = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Several, e.g. 0,1,2: a run in <out>/seed-<n> each, and their curves."),
    ] = None,
    device: ConfiguredDevice = None,
    config: Config = None,
    print_config: PrintConfig = False,
    report: Annotated[
        bool, typer.Option(help="Without an environment and --seeds: write report.html at the end.")
    ] = True,
    trust: Trust = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Train an algorithm on a dataset; resumes when called again.

    The folder gets config.yaml (complete settings), curve.csv, checkpoints/ and, at the end,
    policy.safetensors and result.json; for a log without an environment also report.html, as of the
    command `report`. Fields are those of the algorithm's config and of its policy's encoder
    factory.
    """
    from spin_d3rlpy.runs.report_page import write_report_of_training
    from spin_d3rlpy.runs.seeds import parse_seeds, run_seeds
    from spin_d3rlpy.runs.settings import train_settings
    from spin_d3rlpy.runs.training import run_training

    values, source = configured(
        config,
        dataset=dataset,
        algorithm=algorithm,
        recipe=recipe or (None if config else "tuned"),
        seconds=None if minutes is None else 60.0 * minutes,
        asm=asm,
        size=size,
        bins=bins,
        n_steps=steps,
        n_steps_per_epoch=steps_per_epoch,
        episodes=episodes,
        mode=mode,
        seed=seed,
        device=device,
        fields=nested_fields(fields),
    )
    settings = train_settings(values, source)
    if print_config:
        print_settings(settings)
        return
    if seeds is not None:
        if seed is not None:
            raise ValueError("Expected --seed or --seeds, got both.")
        several = run_seeds(out, settings, parse_seeds(seeds), progress, trust)
        summary = (
            f"{several['metric']}: mean {several['mean']:.4g}, from {several['lowest']:.4g} to "
            f"{several['highest']:.4g} ({len(several['runs'])} seeds)\nDrawn in "
            f"{several['picture']}"
        )
        emit(json, several, summary)
        return
    result = run_training(out, settings, progress, trust)
    if "warning" in result:
        log(result["warning"])
    if "return" in result:
        score = f", score {result['score']:.1f}" if "score" in result else ""
        what = f"return {result['return']:.1f}{score} ({result['episodes']} episodes)"
    else:
        what = f"{100 * result['action_match']:.1f} % of the log's slots matched"
        if report:
            result["report"] = write_report_of_training(out, settings.device, trust, progress)
    emit(
        json,
        result,
        f"{result['algorithm']} after {result['steps']:,} steps: {what}\nSaved: {result['policy']}"
        + (f"\nReport: {result['report']}" if result.get("report") else ""),
    )
