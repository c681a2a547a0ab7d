"""`spin-d3rlpy evaluate`, `predict`, `record`, `export` and `push`: using a trained policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from spin_d3rlpy.cli.options import (
    Device,
    Env,
    EnvArgs,
    Json,
    Policy,
    Progress,
    Trust,
    complete_datasets,
    emit,
    parse_arguments,
    read_rule,
)
from spin_d3rlpy.cli.program import command, program


@command(
    program,
    "spin-d3rlpy evaluate run",
    "spin-d3rlpy evaluate policy.safetensors --env spin/cheetah-run-v0 --env-arg bins=3",
    "spin-d3rlpy evaluate run --dataset spin/cheetah-run-b3/medium-expert-v0 --steps 20000",
    "spin-d3rlpy evaluate run --episodes 100 --json | jq .score",
)
def evaluate(
    policy: Policy,
    env: Env = None,
    env_arg: EnvArgs = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the first episode (--dataset: of FQE).")] = 100,
    mode: Annotated[Literal["greedy", "sample"], typer.Option(help="Actions.")] = "greedy",
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Play nothing; estimate the value by fitted Q evaluation on this dataset.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="--dataset: gradient steps.")] = 10_000,
    gamma: Annotated[float, typer.Option(min=0, max=1, help="--dataset: discount.")] = 0.99,
    trust: Trust = False,
    device: Device = "cpu:0",
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Evaluate a policy by playing episodes, or offline by fitted Q evaluation."""
    from spin_d3rlpy.data.loader import as_device_buffer
    from spin_d3rlpy.runs.play import estimate_value, play_episodes
    from spin_d3rlpy.runs.policy import open_policy

    opened = open_policy(policy, device, trust)
    result: dict[str, Any]
    if dataset is not None:
        buffer = as_device_buffer(dataset, opened.nvec, flat_actions=opened.algorithm.flat_actions)
        result = estimate_value(opened, buffer, steps, gamma, mode, seed, device, progress)
        text = (
            f"estimated value {result['estimated_value']:.2f} (discount {gamma}); "
            f"the data's own episodes: {result['data_value']:.2f}"
        )
    else:
        arguments = parse_arguments(env_arg or [])
        result = play_episodes(opened, env, arguments, episodes, seed, mode)
        score = f", score {result['score']:.1f}" if "score" in result else ""
        text = (
            f"return {result['return']:.1f} +- {result['return_std']:.1f} "
            f"({episodes} episodes, {mode} actions){score}"
        )
    emit(json, result, text)


@command(
    program,
    "spin-d3rlpy predict policy.safetensors new.csv",
    "spin-d3rlpy predict runs/x new.csv --out choices.csv",
    "spin-d3rlpy predict runs/x new.csv --rule rules.py:no_double_dose",
)
def predict(
    policy: Policy,
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file, a state per row.")],
    out: Annotated[Path | None, typer.Option(help="A CSV file; default: print.")] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="<file>:<function>: what choices keep. The file is run."),
    ] = None,
    trust: Trust = False,
    device: Device = "cpu:0",
    json: Json = False,
) -> None:
    """Choose for a table's rows, by the names of the log that the policy learned from.

    Each row gets the choices and, where the policy knows them, support (probability in the log of
    the least usual choice in view of the others) and value (estimated discounted return).
    """
    from spin_d3rlpy.files.results import csv_text, write_csv
    from spin_d3rlpy.runs.decide import decide_table
    from spin_d3rlpy.runs.policy import open_policy

    kept = None if rule is None else read_rule(rule)
    rows = decide_table(open_policy(policy, device, trust).algorithm, table, kept)
    if out is None:
        emit(json, rows, csv_text(rows).rstrip("\n"))
        return
    write_csv(out, rows)
    emit(json, {"file": str(out), "rows": len(rows)}, f"{out}: {len(rows):,} rows")


@command(
    program,
    "spin-d3rlpy record cheetah-run-b3-expert --out cheetah.mp4",
    "spin-d3rlpy record run --out run.gif --max-steps 200",
    "spin-d3rlpy record policy.safetensors --env spin/maze-v0 --env-arg actuators=7 --out maze.gif",
)
def record(
    policy: Policy,
    out: Annotated[Path, typer.Option(help="An .mp4 or .gif file.")] = Path("policy.mp4"),
    env: Env = None,
    env_arg: EnvArgs = None,
    seed: Annotated[int, typer.Option(help="Of the episode.")] = 0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Of the episode.")] = None,
    device: Device = "cpu:0",
    json: Json = False,
) -> None:
    """Record an episode of a policy as a video (needs the extra `video`)."""
    from spin_d3rlpy.runs.play import record_policy

    total = record_policy(policy, out, env, parse_arguments(env_arg or []), seed, max_steps, device)
    emit(json, {"video": str(out), "return": total}, f"{out}: return {total:.1f}")


@command(
    program,
    "spin-d3rlpy export run --out policy.onnx",
    "spin-d3rlpy export policy.safetensors --out policy.pt",
    "spin-d3rlpy export run --out policy.onnx --masks",
)
def export(
    policy: Policy,
    out: Annotated[Path, typer.Option(help=".pt (TorchScript) or .onnx.")] = Path("policy.onnx"),
    masks: Annotated[
        bool, typer.Option("--masks", help="The file also takes masks of what may be chosen.")
    ] = False,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Write a policy's greedy actions as TorchScript or ONNX (extra `onnx`), scaling included.

    The file maps float32 observations (B, obs) to actions (B, N) and runs without this package and
    d3rlpy. With --masks its second input is bool masks (B, N, K), True where a choice may be made.
    """
    from spin_d3rlpy.runs.policy import open_policy

    algorithm = open_policy(policy, trust=trust).algorithm
    algorithm.save_policy(str(out), masks)
    assert algorithm.impl is not None
    size, nvec = algorithm.impl.observation_shape[0], list(algorithm.config.nvec)
    result = {
        "file": str(out),
        "bytes": out.stat().st_size,
        "observation_size": size,
        "nvec": nvec,
        "masks": masks,
    }
    inputs = f"observations (B, {size})"
    if masks:
        inputs += f", masks (B, {len(nvec)}, {max(nvec)})"
    shapes = f"{inputs}, actions (B, {len(nvec)}) with {nvec=}"
    emit(json, result, f"{out}: {result['bytes']:,} bytes, {shapes}")


@command(
    program,
    "spin-d3rlpy push runs/x your-name/x --license mit",
    "spin-d3rlpy push policy.safetensors your-name/x --private",
)
def push(
    policy: Annotated[Path, typer.Argument(help="Folder of a training, or a file of save_policy.")],
    repository: Annotated[str, typer.Argument(help="<user or organization>/<name>.")],
    license: Annotated[  # noqa: A002
        str | None, typer.Option(help="For the card; the owners of the data decide it.")
    ] = None,
    private: Annotated[bool, typer.Option(help="If the repository is created.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch; default: the main one.")] = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Upload a policy and its card to the Hugging Face hub (extra `hf`, a token in HF_TOKEN)."""
    from spin_d3rlpy.runs.hub import push_to_hub

    location = push_to_hub(policy, repository, license, private, revision, trust)
    emit(json, {"location": location}, f"Pushed to {location}")
