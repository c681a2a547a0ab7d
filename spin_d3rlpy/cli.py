"""The command line, `spin-d3rlpy`."""

from __future__ import annotations

import importlib.metadata
import logging
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from spin_d3rlpy import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Offline reinforcement learning for MultiDiscrete actions.",
)
data_app = typer.Typer(
    no_args_is_help=True, help="Datasets: list, build, import, check and share them."
)
behavior_app = typer.Typer(no_args_is_help=True, help="Behavior policies: train them.")
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks: measure this package.")
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(behavior_app, name="behaviour")

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show d3rlpy's log and tracebacks of errors.")
]
Trust = Annotated[
    bool, typer.Option(help="Make the environment by whatever function the dataset names.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]


@app.callback()
def _common(verbose: Verbose = False) -> None:
    level = logging.INFO if verbose else logging.WARNING
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("spin-demo"),
    preset: Annotated[str, typer.Option(help="cpu-small, paper or smoke.")] = "cpu-small",
    seed: Annotated[int, typer.Option(help="Of networks and mini-batches.")] = 0,
    size: Annotated[
        int | None, typer.Option(help="Transitions of the dataset; default: as published.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu:0, cuda:0, ...")] = "cpu:0",
    jobs: Jobs = None,
) -> None:
    """Train SPIN-IQL and factored IQL on cheetah-run and compare them, in minutes on a CPU."""
    from spin_d3rlpy.demo import DemoSettings, run_demo

    run_demo(out, DemoSettings(preset, seed, size, device), jobs=jobs, log=typer.echo)


@data_app.command("list")
def data_list() -> None:
    """List the datasets that this installation can build."""
    from spin_d3rlpy.data import buildable_datasets

    for name in buildable_datasets():
        typer.echo(name)


@data_app.command("build")
def data_build(
    name: Annotated[str, typer.Argument(help="E.g. spin/cheetah-run-b3/medium-expert-v0.")],
    size: Annotated[int | None, typer.Option(help="Transitions; default: as published.")] = None,
    jobs: Jobs = None,
) -> None:
    """Build a dataset (a build that was stopped goes on), or say that it is there."""
    from spin_d3rlpy.data.loader import open_dataset
    from spin_d3rlpy.data.table import dataset_bytes

    dataset = open_dataset(name, size=size, jobs=jobs)
    seconds = dataset.storage.metadata.get("build_seconds")
    typer.echo(
        f"{dataset.id}: {dataset.total_steps:,} transitions, {dataset.total_episodes} episodes, "
        f"{dataset_bytes(dataset):,} bytes"
        + ("" if seconds is None else f", built in {seconds:.1f} s")
    )


@data_app.command("import")
def data_import(
    path: Annotated[Path, typer.Argument(help="A published file, or a folder of <bins>_bins/.")],
    name: Annotated[
        str | None,
        typer.Option(help="spin/<task>/<level>-published-v0, if a file's path does not say it."),
    ] = None,
) -> None:
    """Import published pickled transitions, without running anything that is in them."""
    from spin_d3rlpy.data.importer import import_published, published_files

    files = published_files(path)
    if name is not None and len(files) > 1:
        raise ValueError(f"--name is for one file, {path} has {len(files)}.")
    for file in files:
        typer.echo(f"{import_published(file, name)} from {file}")


@data_app.command("push")
def data_push(
    name: Annotated[str, typer.Argument(help="A dataset on this machine.")],
    license: Annotated[  # noqa: A002
        str | None,
        typer.Option(help="For the dataset card; default: this package's, if it built the data."),
    ] = None,
) -> None:
    """Share a dataset with its card: MINARI_REMOTE=hf://<user or organization>, HF_TOKEN."""
    from spin_d3rlpy.data.loader import open_local
    from spin_d3rlpy.data.remote import push_dataset

    typer.echo(f"{name} is at {push_dataset(open_local(name), license)}")


@data_app.command("pull")
def data_pull(
    name: Annotated[str, typer.Argument(help="E.g. spin/cheetah-run-b3/medium-expert-v0.")],
) -> None:
    """Download a shared dataset from MINARI_REMOTE, or say that it is there."""
    from spin_d3rlpy.data.remote import pull_dataset

    typer.echo(f"{name} {'downloaded' if pull_dataset(name) else 'is on this machine already'}")


@data_app.command("table")
def data_table(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("datasets.csv"),
) -> None:
    """Write composition, returns, size and build time of this machine's datasets as CSV."""
    from spin_d3rlpy.data.table import table_rows
    from spin_d3rlpy.reports import format_table, write_csv

    rows = table_rows()
    if not rows:
        raise ValueError("There are no spin/... datasets on this machine: spin-d3rlpy data build.")
    typer.echo(format_table([{k: v for k, v in row.items() if k != "checksum"} for row in rows]))
    write_csv(out, rows)


@data_app.command("check")
def data_check(
    name: Annotated[str, typer.Argument(help="A dataset on this machine, or a folder (./...).")],
    episodes: Annotated[int, typer.Option(min=0, help="Episodes to replay.")] = 3,
    replay_all: Annotated[bool, typer.Option("--all", help="Replay all episodes.")] = False,
    histogram: Annotated[Path, typer.Option(help="Where the picture of the returns goes.")] = Path(
        "returns.png"
    ),
    trust: Trust = False,
) -> None:
    """Check a dataset's arrays, record and alignment; exit code 1 if something is wrong."""
    from spin_d3rlpy.data.check import check_dataset, draw_returns
    from spin_d3rlpy.data.loader import open_local

    report = check_dataset(open_local(name, trust), None if replay_all else episodes, trust)
    typer.echo(report.summary())
    if report.returns and all(map(math.isfinite, report.returns)):
        draw_returns(report, histogram)
        typer.echo(f"  returns drawn in {histogram}")
    if report.problems:
        raise typer.Exit(1)


@behavior_app.command("train")
def behavior_train(
    task: Annotated[str, typer.Argument(help="E.g. cheetah-run-b3 or maze-a10.")],
    level: Annotated[str, typer.Option(help="medium or expert.")] = "expert",
    out: Annotated[Path, typer.Option(help="Folder of checkpoint and snapshots.")] = Path("runs"),
) -> None:
    """Train a behavior policy (resumes a run that was stopped) and select a snapshot."""
    from spin_d3rlpy.behavior.recipes import get_recipe
    from spin_d3rlpy.behavior.train import BehaviorTrainer, select_policy

    recipe = get_recipe(f"{task}-{level}")
    folder = out / recipe.name
    BehaviorTrainer(recipe, folder).train()
    typer.echo(f"Selected: {select_policy(recipe, folder, folder)}")


@bench_app.command("list")
def bench_list() -> None:
    """List experiments and how many cells they have per seed."""
    from spin_d3rlpy.benchmark.experiments.specs import EXPERIMENTS, SCALES

    for name, experiment in EXPERIMENTS.items():
        n_cells = len(experiment.jobs(SCALES["paper"], [0], "cpu:0"))
        typer.echo(f"{name:12} {n_cells:3} cells a seed  {experiment.title}")


Experiments = Annotated[list[str], typer.Argument(help="Experiments, see `bench list`.")]
Scaling = Annotated[str, typer.Option("--preset", help="paper, cpu or smoke.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ...; default: the preset's.")]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", help="Only datasets with this in their name.")
]
Folder = Annotated[Path, typer.Option(help="Folder of the jobs; finished ones are kept.")]
Device = Annotated[str, typer.Option(help="cpu:0, cuda:0, ...")]


@bench_app.command("run")
def bench_run(
    names: Experiments,
    preset: Scaling = "cpu",
    seeds: Seeds = None,
    task: Tasks = None,
    folder: Folder = Path("spin-bench"),
    device: Device = "cpu:0",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once; default: all cores, or GPUs.")
    ] = None,
) -> None:
    """Run experiments, each cell in a process of its own; called again, go on where it was."""
    from spin_d3rlpy.benchmark.experiments.grid import LocalEngine, run_grid
    from spin_d3rlpy.benchmark.experiments.specs import get_experiments, get_scale

    scale = get_scale(preset)
    jobs = [
        job
        for experiment in get_experiments(names)
        for _, _, job in experiment.jobs(scale, range(seeds or scale.seeds), device, task or ())
    ]
    gpus = [int(device.partition(":")[2] or 0)] if device.startswith("cuda") else []
    failed = run_grid(jobs, folder, LocalEngine(workers, gpus))
    for job in failed:
        typer.echo(f"failed: {folder / job.name} (see error.txt)", err=True)
    if failed:
        raise typer.Exit(1)


@bench_app.command("report")
def bench_report(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; default: all.")] = None,
    preset: Scaling = "cpu",
    seeds: Seeds = None,
    task: Tasks = None,
    folder: Folder = Path("spin-bench"),
    device: Device = "cpu:0",
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("spin-report"),
) -> None:
    """Write tables and curves of finished cells as CSV, PNG, Markdown and one HTML file."""
    from spin_d3rlpy.benchmark.experiments.report import write_report
    from spin_d3rlpy.benchmark.experiments.specs import EXPERIMENTS, get_experiments, get_scale

    scale = get_scale(preset)
    chosen = [experiment.name for experiment in get_experiments(names or list(EXPERIMENTS))]
    for file in write_report(
        folder, out, preset, scale, chosen, range(seeds or scale.seeds), device, task or ()
    ):
        typer.echo(file)


@bench_app.command("speed")
def bench_speed(
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("spin-speed"),
    quick: Annotated[
        bool, typer.Option(help="One problem, one turn: seconds, no figures.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu:0, cuda:0, ...")] = "cpu:0",
) -> None:
    """Time training steps beside a plain formulation and beside the machine's floor."""
    from spin_d3rlpy.benchmark.speed import run_speed_benchmark

    run_speed_benchmark(out, quick, device, log=typer.echo)


@bench_app.command("loading")
def bench_loading(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("loading.csv"),
    size: Annotated[int | None, typer.Option(help="Transitions; default: 200,000.")] = None,
) -> None:
    """Time loading beside Minari's episodes and d3rlpy's loader, and measure its memory."""
    from spin_d3rlpy.benchmark.loading import run_loading_benchmark

    run_loading_benchmark(out, size, log=typer.echo)


@bench_app.command("soak")
def bench_soak(
    out: Annotated[Path, typer.Option(help="Folder for table and picture.")] = Path("spin-soak"),
    minutes: Annotated[float, typer.Option(help="How long.")] = 65.0,
    preset: Annotated[str, typer.Option(help="Sizes: cpu-small, paper or smoke.")] = "cpu-small",
    size: Annotated[int | None, typer.Option(help="Transitions; default: 200,000.")] = None,
) -> None:
    """Train for an hour, with evaluation, and see whether memory and speed stay flat."""
    from spin_d3rlpy.benchmark.soak import run_soak

    run_soak(out, minutes, preset, size, log=typer.echo)


@bench_app.command("kills")
def bench_kills(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("kills.csv"),
    kills: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
) -> None:
    """Kill small runs at random moments, go on, and compare with one left alone."""
    from spin_d3rlpy.benchmark.kills import run_kill_benchmark

    if not run_kill_benchmark(out, kills, log=typer.echo):
        raise typer.Exit(1)


@bench_app.command("memory")
def bench_memory(
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("memory.csv"),
    transitions: Annotated[int, typer.Option(min=1000, help="In episodes of 1,000.")] = 2_000_000,
    features: Annotated[int, typer.Option(min=1, help="Length of an observation.")] = 223,
    folder: Annotated[
        Path | None, typer.Option(help="For the dataset; default: a temporary folder.")
    ] = None,
) -> None:
    """Measure what training on a large made-up dataset takes, in memory and mapped."""
    from spin_d3rlpy.benchmark.memory import run_memory_benchmark

    run_memory_benchmark(out, transitions, features, folder, log=typer.echo)


@app.command()
def record(
    policy: Annotated[
        str,
        typer.Argument(
            help="A .safetensors file of save_policy, a .d3 file, or a shipped behavior policy "
            "such as cheetah-run-b3-expert. A .d3 file is a pickle, which runs code when d3rlpy "
            "loads it: open only files you trust."
        ),
    ],
    out: Annotated[Path, typer.Option(help="An .mp4 or .gif file.")] = Path("policy.mp4"),
    env: Annotated[
        str | None, typer.Option(help="Environment id; default: the shipped policy's own.")
    ] = None,
    env_arg: Annotated[
        list[str] | None,
        typer.Option(help="Argument of the environment, e.g. bins=3; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the episode.")] = 0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None,
    device: Annotated[str, typer.Option(help="cpu:0, cuda:0, ...")] = "cpu:0",
) -> None:
    """Record an episode of a saved policy as a video (needs the extra `video`)."""
    from spin_d3rlpy.recording import parse_arguments, record_policy

    total = record_policy(policy, out, env, parse_arguments(env_arg or []), seed, max_steps, device)
    typer.echo(f"{out}: return {total:.1f}")


@app.command()
def info() -> None:
    """Show versions, devices and folders."""
    import minari.storage
    import torch

    typer.echo(f"spin-d3rlpy {__version__}, Python {sys.version.split()[0]}")
    for name in ("d3rlpy", "torch", "gymnasium", "minari", "dm_control", "mujoco", "numpy"):
        try:
            typer.echo(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo(f"{name} not installed")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    typer.echo(f"CPU cores: {os.cpu_count()}; GPUs: {', '.join(devices) or 'none'}")
    typer.echo(f"Datasets in {minari.storage.get_dataset_path('')}")


def main() -> None:
    """Runs the command line; bad input ends in one line on stderr and exit code 2."""
    from spin_d3rlpy.errors import SpinError
    from spin_envs import InvalidActionError, MissingDependencyError, UnknownTaskError

    try:
        app()
    except (
        SpinError,
        InvalidActionError,
        MissingDependencyError,
        UnknownTaskError,
        ValueError,
        FileNotFoundError,
    ) as error:
        if "-v" in sys.argv or "--verbose" in sys.argv:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(2) from error
