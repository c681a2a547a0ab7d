"""Settings as dataclasses and YAML files, as the command line reads and prints them."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a YAML file of settings; raises ValueError for anything but a mapping."""
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"Expected {path} to hold lines of `name: value`, got {content!r}.")
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
    return cls(**values)


def check_values(cls: type[Any], values: Mapping[str, Any], source: str) -> None:
    """Raises ValueError for unknown field names and values of other (plain) types."""
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name, value in values.items():
        check_name(name, names, source)
        if not _fits(value, hints[name]):
            raise ValueError(
                f"{source}: expected {name} to be {_describe(hints[name])}, got {value!r}."
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


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(v, get_args(hint)[0]) for v in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint in (str, bool, type(None)):
        return isinstance(value, hint)
    return True


_IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    type(None): "null",
}


def _describe(hint: Any) -> str:
    """Says in words which values of a file a type takes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin is list:
        return f"a list, each entry {_describe(parts[0])}"
    if origin is dict:
        return _IN_WORDS[dict]
    return _IN_WORDS.get(hint) or f"a {getattr(hint, '__name__', hint)}"
