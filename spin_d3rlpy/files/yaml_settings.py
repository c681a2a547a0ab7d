"""Settings as dataclasses and YAML files, as the command line reads and prints them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from spin_d3rlpy.errors import shown
from spin_d3rlpy.files.fields import OTHERS, check_fields
from spin_d3rlpy.files.types import describe, fits

T = TypeVar("T")


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a YAML file of settings; raises ValueError for anything but a mapping."""
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from error
    except RecursionError as error:
        raise ValueError(
            f"{path} is nested too deeply. Expected lines of `name: value`, as --print-config "
            "writes them."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"Expected {path} to hold lines of `name: value`, got {shown(content)}.")
    return content


def format_settings(settings: Any) -> str:
    """Returns a dataclass as YAML that `read_settings` reads, in the order of its fields."""
    return str(yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False))


def create(cls: type[T], values: Mapping[str, Any], source: str) -> T:
    """Creates a dataclass from values of a user, or raises ValueError (see `check_values`)."""
    check_values(cls, values, source)
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{source}: {', '.join(missing)} must be given.")
    created = cls(**values)
    try:
        check_fields(created)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return created


def check_values(cls: type[Any], values: Mapping[str, Any], source: str) -> None:
    """Raises ValueError for unknown field names and values of other (plain) types."""
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name, value in values.items():
        check_name(name, names, source)
        if name not in OTHERS and not fits(value, hints[name]):
            raise ValueError(
                f"{source}: expected {name} to be {describe(hints[name])}, got {shown(value)}."
            )


def check_name(name: str, known: list[str], source: str) -> None:
    """Raises ValueError, with near matches, for an unknown name."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
        raise ValueError(f"{source}: there is no {name!r}. Near matches: {', '.join(near)}.")


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` updated recursively by `changes`."""
    merged = dict(base)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turns `{"a.b": 1}` into `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        nested = merge(nested, value)
    return nested
