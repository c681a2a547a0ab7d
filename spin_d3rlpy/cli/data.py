"""`spin-d3rlpy data`: list, build, import, check and share datasets."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from spin_d3rlpy.cli.options import Dataset, Jobs, Json, LocalDataset, Size, Trust, emit
from spin_d3rlpy.cli.program import command, group

app = group("data", "Datasets: list, build, import, check and share them.")


@command(app, name="list")
def list_datasets(json: Json = False) -> None:
    """List the datasets that this installation can build."""
    from spin_d3rlpy.data import buildable_datasets

    names = buildable_datasets()
    emit(json, names, "\n".join(names))


@command(
    app,
    "spin-d3rlpy data build spin/cheetah-run-b3/medium-expert-v0",
    "spin-d3rlpy data build spin/cheetah-run-b3/medium-v0 --size 20000",
)
def build(name: Dataset, size: Size = None, jobs: Jobs = None, json: Json = False) -> None:
    """Build a dataset, resuming a stopped build; reports a dataset that exists."""
    from spin_d3rlpy.data.loader import open_dataset
    from spin_d3rlpy.data.minari.staging import dataset_bytes

    dataset = open_dataset(name, size=size, jobs=jobs)
    seconds = dataset.storage.metadata.get("build_seconds")
    result = {
        "dataset": dataset.id,
        "transitions": int(dataset.total_steps),
        "episodes": int(dataset.total_episodes),
        "bytes": dataset_bytes(dataset),
        "build_seconds": seconds,
    }
    text = "{dataset}: {transitions:,} transitions, {episodes} episodes, {bytes:,} bytes"
    built = "" if seconds is None else f", built in {seconds:.1f} s"
    emit(json, result, text.format(**result) + built)


@command(app, "spin-d3rlpy data import published/", name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="A published file, or a folder of <bins>_bins/.")],
    name: Annotated[
        str | None, typer.Option(help="spin/<task>/<level>-published-v0; default: by the path.")
    ] = None,
    json: Json = False,
) -> None:
    """Import published pickled transitions; nothing in the file is executed."""
    from spin_d3rlpy.data.minari.importer import import_published, published_files

    files = published_files(path)
    if name is not None and len(files) > 1:
        raise ValueError(f"--name is for one file, {path} has {len(files)}.")
    imported = {str(file): import_published(file, name) for file in files}
    emit(json, imported, "\n".join(f"{name} from {file}" for file, name in imported.items()))


@command(
    app,
    "spin-d3rlpy data from-table log.csv me/log-v0 --observation age --observation pulse "
    "--action drug_a --action drug_b --reward outcome --episode patient --choices drug_a=0,50,100 "
    "--choices drug_b=0,1",
    "spin-d3rlpy data from-table log.csv me/log-v0 --observation admitted --observation ward "
    "--category ward --missing forward --action dose --choices dose=0,50 --reward outcome "
    "--episode patient --time seen --terminal status --terminal-value dead",
    name="from-table",
)
def from_table_(
    table: Annotated[
        Path, typer.Argument(help="A .csv or .parquet file, one row per step, or a folder.")
    ],
    name: Annotated[str, typer.Argument(help="Of the dataset, <namespace>/<name>-v<number>.")],
    observation: Annotated[list[str], typer.Option(help="Column of the state; repeatable.")],
    action: Annotated[list[str], typer.Option(help="Column of a slot; repeatable.")],
    reward: Annotated[
        list[str],
        typer.Option(help="Column of the reward; or <name>=<column> for each of several."),
    ],
    episode: Annotated[
        list[str],
        typer.Option(help="Column that identifies an episode's rows; repeatable, then together."),
    ],
    choices: Annotated[
        list[str] | None,
        typer.Option(help="A slot's values: <column>=<value>,<value>; for each without --bins."),
    ] = None,
    bins: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a slot of continuous numbers: how many, <column>=5, by quantiles, "
            "<column>=quantiles:5, or the bins' edges, <column>=0,5,30,100."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column that orders them.")] = None,
    terminal: Annotated[str | None, typer.Option(help="Column, 1 where it ended for good.")] = None,
    terminal_value: Annotated[
        list[str] | None,
        typer.Option(help="A value of --terminal that ends an episode, e.g. dead; repeatable."),
    ] = None,
    missing: Annotated[
        Literal["refuse", "mean", "forward"],
        typer.Option(
            help="Empty cells of the state: an error, the column's mean, or the episode's last "
            "value. The last two add a feature that says where a cell was empty."
        ),
    ] = "refuse",
    category: Annotated[
        list[str] | None,
        typer.Option(help="Column of the state whose numbers are names; repeatable."),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(help="Of several rewards, in the one that is trained by: <name>=<number>."),
    ] = None,
    last_step: Annotated[
        Literal["keep", "drop"],
        typer.Option(help="A last step with an unknown state after it: keep as an end, or drop."),
    ] = "keep",
    subtract: Annotated[
        list[str] | None,
        typer.Option(help="From a state's column before rounding to float32: <column>=<number>."),
    ] = None,
    decimal: Annotated[
        list[str] | None,
        typer.Option(help="Mark before decimals in text: ',' for all, or <column>=<mark>."),
    ] = None,
    dates: Annotated[
        list[str] | None,
        typer.Option(help="How dates are written: %d.%m.%Y for all, or <column>=<format>."),
    ] = None,
    memory_map: Annotated[
        Path | None,
        typer.Option(help="Folder for the log's arrays, for logs larger than memory."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a dataset from a log of decisions, for `train` and `pretrain` by its name.

    Columns of the state may hold numbers, dates (2024-05-31T08:30), yes and no, and words.
    """
    from spin_d3rlpy.data import from_table, save_dataset

    differences = [text.rpartition("=") for text in subtract or ()]
    buffer = from_table(
        table,
        observations=observation,
        actions=action,
        **_rewards(reward, weight or []),
        episode=episode,
        time=time,
        terminal=terminal or False,
        choices=_by_action("--choices", choices, action),
        bins=_bins(bins, action),
        last_step=last_step,
        subtract={column: _number(text) for column, _, text in differences},
        terminal_values=None if terminal_value is None else _typed(terminal_value),
        missing=missing,
        categories=category or (),
        decimal=_by_column("--decimal", decimal),
        dates=_by_column("--dates", dates),
        memory_map=memory_map,
    )
    description = f"Made of {table.name}."
    if subtract:
        description += f" Subtracted from columns of the state: {', '.join(subtract)}."
    save_dataset(buffer, name, description=description)
    n, nvec = buffer.transition_count, buffer.nvec
    features = [] if buffer.preparation is None else buffer.preparation.features
    result = {
        "dataset": name,
        "episodes": buffer.size(),
        "transitions": n,
        "nvec": nvec,
        "features": features,
    }
    text = f"{name}: {buffer.size()} episodes, {n:,} transitions, {nvec=}"
    emit(json, result, f"{text}\nFeatures of the state: {', '.join(features)}")


def _by_action(
    option: str, options: list[str] | None, actions: list[str]
) -> dict[str, list[str | int | float]]:
    """Returns the values of each action column; values with commas may be in quotation marks."""
    by_column: dict[str, list[str | int | float]] = {}
    for text in options or ():
        # A name may contain "=": the longest that fits is meant.
        fitting = [name for name in actions if text.startswith(f"{name}=")]
        column = max(fitting, key=len, default=text.partition("=")[0])
        if column in by_column:
            raise ValueError(f"Expected {option} once for each column, got {column!r} twice.")
        by_column[column] = _typed(next(csv.reader([text[len(column) + 1 :]]), []))
    return by_column


def _bins(options: list[str] | None, actions: list[str]) -> dict[str, Any] | None:
    """Returns the bins of action columns: see `bins_of_text`."""
    from spin_d3rlpy.data.bins_texts import bins_of_text

    bins = {}
    for name, values in _by_action("--bins", options, actions).items():
        try:
            bins[name] = bins_of_text(",".join(map(str, values)))
        except ValueError as error:
            raise ValueError(f'The bins of action["{name}"] are wrong: {error}') from error
    return bins or None


def _rewards(options: list[str], weights: list[str]) -> dict[str, Any]:
    """Returns the arguments `reward`, or `rewards` and `weights`, of `from_table`."""
    if len(options) == 1 and "=" not in options[0] and not weights:
        return {"reward": options[0]}
    named = [text.partition("=") for text in options]
    twice = [name for i, (name, _, _) in enumerate(named) if name in [n for n, _, _ in named[:i]]]
    if twice or not all(name and column for name, _, column in named):
        raise ValueError(
            "Expected one --reward <column>, or several different ones, --reward <name>=<column>; "
            f"got {' and '.join(map(repr, options))}."
        )
    by_name = {name: column for name, _, column in named}
    parts = [text.rpartition("=") for text in weights]
    given = {name: _number(text, "--weight") for name, _, text in parts}
    if len(given) < len(parts):
        raise ValueError(f"Expected each --weight once, got {' and '.join(map(repr, weights))}.")
    if not given:
        raise ValueError(
            f"Expected --weight <name>=<number> of the rewards {', '.join(by_name)}, which make "
            "the one that is trained by."
        )
    return {"rewards": by_name, "weights": given}


def _typed(values: list[str]) -> list[str | int | float]:
    """Returns numbers if all values are numbers as these are written, so that 50 is also 50.0."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            numbers = [kind(value) for value in values]
            if [str(number) for number in numbers] == values and all(map(math.isfinite, numbers)):
                return [*numbers]
    return [*values]


def _by_column(option: str, texts: list[str] | None) -> str | dict[str, str] | None:
    """Returns the one text for all columns, or texts by column."""
    parted = [text.rpartition("=") for text in texts or ()]
    if len(parted) == 1 and not parted[0][1]:
        return parted[0][2]
    if not all(column and text for column, _, text in parted):
        raise ValueError(f"Expected {option} <column>=<text> for each column, got {texts}.")
    return {column: text for column, _, text in parted} or None


def _number(text: str, option: str = "--subtract") -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Expected {option} <name>=<number>, got {text!r}.") from None


@command(app, "MINARI_REMOTE=hf://me spin-d3rlpy data push spin/cheetah-run-b3/medium-v0")
def push(
    name: LocalDataset,
    license: Annotated[  # noqa: A002
        str | None, typer.Option(help="Default: this package's, if it built the data.")
    ] = None,
) -> None:
    """Share a dataset with its card: MINARI_REMOTE=hf://<user or organization>, HF_TOKEN."""
    from spin_d3rlpy.data.loader import open_local
    from spin_d3rlpy.data.minari.remote import push_dataset

    typer.echo(f"{name} is at {push_dataset(open_local(name), license)}")


@command(app, "MINARI_REMOTE=hf://me spin-d3rlpy data pull spin/cheetah-run-b3/medium-v0")
def pull(name: Dataset) -> None:
    """Download a shared dataset from MINARI_REMOTE; reports a dataset that exists."""
    from spin_d3rlpy.data.minari.remote import pull_dataset

    typer.echo(f"{name} {'downloaded' if pull_dataset(name) else 'exists on this machine'}")


@command(
    app,
    "spin-d3rlpy data check spin/cheetah-run-b3/medium-v0",
    "spin-d3rlpy data check spin/cheetah-run-b3/medium-v0 --picture returns.png",
    "spin-d3rlpy data check spin/cheetah-run-b3/medium-v0 --all --json",
)
def check(
    name: LocalDataset,
    episodes: Annotated[int, typer.Option(min=0, help="Episodes to replay.")] = 3,
    replay_all: Annotated[bool, typer.Option("--all", help="Replay all episodes.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", "--histogram", help="Draw a histogram of returns in this file."),
    ] = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Check a dataset's arrays, record and alignment; exit code 1 if something is wrong."""
    from spin_d3rlpy.data.loader import open_local
    from spin_d3rlpy.data.minari.check import check_dataset
    from spin_d3rlpy.runs.plots import plot_returns

    report = check_dataset(open_local(name, trust), None if replay_all else episodes, trust)
    text = report.summary()
    if picture is not None and report.returns and all(map(math.isfinite, report.returns)):
        groups = report.returns_by_policy() or {"all": report.returns}
        plot_returns(picture, groups, report.name)
        text += f"\n  returns drawn in {picture}"
    emit(json, dataclasses.asdict(report), text)
    if report.problems:
        raise typer.Exit(1)
