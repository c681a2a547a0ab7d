"""Options shared by several commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from spin_d3rlpy.asm.rules import AnyRule


def check_device(device: str | None) -> str | None:
    """Raises an error for a missing device, earlier and clearer than torch's."""
    import torch

    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise typer.BadParameter(f"expected cpu:0, cuda:0, ..., got {device!r}.") from error
    count = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        raise typer.BadParameter(f"{device} does not exist; torch sees {count} GPUs.")
    return device


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Reads `name=value` texts; values are JSON (3, [2, 3], true) or else strings."""
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"Expected an argument as name=value, got {text!r}.")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def configured(config: Path | None, **options: Any) -> tuple[dict[str, Any], str]:
    """Returns the settings of `--config` updated by options that are not None, and their origin."""
    from spin_d3rlpy.files.yaml_settings import merge, read_settings

    given = {name: value for name, value in options.items() if value is not None}
    if config is None:
        return given, "options"
    return merge(read_settings(config), given), str(config)


def print_settings(settings: object) -> None:
    """Prints complete settings to stdout, as `--config` reads them."""
    from spin_d3rlpy.files.yaml_settings import format_settings

    typer.echo(format_settings(settings), nl=False)


def nested_fields(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Reads `a.b=value` texts as nested mappings; None if there are none."""
    from spin_d3rlpy.files.yaml_settings import nest

    return nest(parse_arguments(texts)) if texts else None


def read_rule(rule: str) -> AnyRule:
    """Runs the user's file and returns the function that is named."""
    import runpy

    file, colon, function = rule.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ValueError(
            f"Expected --rule <file>:<function>, such as rules.py:no_double_dose, got {rule!r}."
        )
    names_in_file: dict[str, Any] = runpy.run_path(file)
    if not callable(names_in_file.get(function)):
        raise ValueError(f"{file} has no function {function!r}.")
    loaded: AnyRule = names_in_file[function]
    return loaded


def emit(as_json: bool, content: Any, text: str) -> None:
    """Prints a command's result to stdout as JSON or text."""
    typer.echo(json.dumps(content, indent=1) if as_json else text)


def log(text: str) -> None:
    """Prints progress to stderr."""
    typer.echo(text, err=True)


def complete_datasets(incomplete: str) -> list[str]:
    """Names for the shell's completion."""
    import minari

    from spin_d3rlpy.data import buildable_datasets

    names = {*buildable_datasets(), *minari.list_local_datasets()}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_algorithms(incomplete: str) -> list[str]:
    """Names for the shell's completion."""
    from spin_d3rlpy.runs.settings import algorithm_names

    return [name for name in algorithm_names() if name.startswith(incomplete)]


def complete_policies(incomplete: str) -> list[str]:
    """Names for the shell's completion."""
    from spin_envs.behavior import shipped_policies

    return [name for name in shipped_policies() if name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Trust = Annotated[bool, typer.Option(help="Call what a dataset or a policy names.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]
Device = Annotated[str, typer.Option(callback=check_device, help="cpu:0, cuda:0, ...")]
ConfiguredDevice = Annotated[
    str | None, typer.Option(callback=check_device, help="cpu:0 (default), cuda:0, ...")
]
Progress = Annotated[bool, typer.Option(help="Draw progress bars (on stderr).")]
Size = Annotated[int | None, typer.Option(help="Transitions; default: the usual size.")]
BinsOfActions = Annotated[
    list[str] | None,
    typer.Option(
        "--bins",
        help="Of continuous actions: how many (5), quantiles of the log (quantiles:5) or edges "
        "(-10,-1,1,10); <name>=... for one part of the action; repeatable.",
    ),
]
Config = Annotated[Path | None, typer.Option(help="YAML file of settings; options override it.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print all settings and stop.")]
_EXAMPLE = "E.g. spin/cheetah-run-b3/medium-expert-v0"
Dataset = Annotated[str, typer.Argument(help=f"{_EXAMPLE}.", autocompletion=complete_datasets)]
ConfiguredDataset = Annotated[
    str | None,
    typer.Argument(
        help=f"{_EXAMPLE}; or in the file of --config.", autocompletion=complete_datasets
    ),
]
LocalDataset = Annotated[
    str,
    typer.Argument(
        help="A dataset on this machine, or its folder (./...).", autocompletion=complete_datasets
    ),
]
Policy = Annotated[
    str,
    typer.Argument(
        help="Folder of a training, a .safetensors file of save_policy, a .d3 file, or a shipped "
        "behavior policy such as cheetah-run-b3-expert, or hf://user/name[@revision] on the "
        "Hugging Face hub (extra hf). A .d3 file is a pickle, which runs code when d3rlpy loads "
        "it: open only files you trust.",
        autocompletion=complete_policies,
    ),
]
Env = Annotated[str | None, typer.Option(help="Id; default: the one of the training.")]
EnvArgs = Annotated[list[str] | None, typer.Option("--env-arg", help="E.g. bins=3; repeatable.")]
Recipe = Annotated[str | None, typer.Option(help="tuned (default), published or smoke.")]
