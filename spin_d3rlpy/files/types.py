"""Whether a value that a user or a file gives is of a field's type, and that type in words."""

from __future__ import annotations

import numbers
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

_NUMBERS: dict[Any, type[Any]] = {int: numbers.Integral, float: numbers.Real}


def fits(value: object, hint: object) -> bool:
    """Whether a value is of a type; where that is a class, whether it may be an instance."""
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in get_args(hint))
    if origin is list:
        return isinstance(value, list | tuple) and all(fits(v, get_args(hint)[0]) for v in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint in _NUMBERS:  # NumPy's, too
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in (str, type(None)):
        return isinstance(value, hint)
    # What JSON or YAML gives is no object; which class may stand for which is not known here.
    return not isinstance(value, Mapping | list | tuple | str | numbers.Number | None)


_IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    type(None): "null",
}


def describe(hint: object) -> str:
    """Says in words which values of a file a type takes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in parts))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin is list:
        return f"a list, each entry {describe(parts[0])}"
    if origin is dict:
        return _IN_WORDS[dict]
    return _IN_WORDS.get(hint) or f"a {getattr(hint, '__name__', hint)}"
