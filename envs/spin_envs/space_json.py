"""Spaces of actions as JSON values, which may come from a file that anyone may have made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from spin_envs.action_numbers import MAX_NUMBERS

_DEEPEST = 20  # spaces within spaces
_TYPES = {np.dtype(t).name: np.dtype(t) for t in "bBhHiIlLqQefd"}


def space_to_dict(space: Space[Any]) -> dict[str, Any]:
    """Returns a space of actions as JSON values; infinite bounds are None."""
    if isinstance(space, Dict):
        return {"Dict": [[key, space_to_dict(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"Tuple": [space_to_dict(inner) for inner in space.spaces]}
    if isinstance(space, Discrete):
        return {"Discrete": [int(space.n), int(space.start)]}
    if isinstance(space, MultiBinary):
        # Spaces of `2` and of `[2]` are not equal to Gymnasium.
        return {"MultiBinary": [list(space.shape), isinstance(space.n, int | np.integer)]}
    dtype = np.dtype(space.dtype).name
    if isinstance(space, MultiDiscrete):
        start = np.asarray(space.start).ravel().tolist()
        sizes = space.nvec.ravel().tolist()
        return {"MultiDiscrete": [list(space.nvec.shape), sizes, start, dtype]}
    assert isinstance(space, Box)
    bounds = [_finite(bound) for bound in (space.low, space.high)]
    return {"Box": [list(space.shape), *bounds, dtype]}


def space_from_dict(content: object, depth: int = 0) -> Space[Any]:
    """Inverse of `space_to_dict`; ValueError if it is none."""
    if not isinstance(content, Mapping) or len(content) != 1 or depth > _DEEPEST:
        raise ValueError(f"Expected a space as an entry of its kind, got {content!r:.100}.")
    (kind, given) = next(iter(content.items()))
    if not isinstance(given, list):
        raise ValueError(f"Expected a list of what {kind!r:.20} is, got {given!r:.100}.")
    if kind == "Dict":
        pairs: Any = [(_key(key), space_from_dict(inner, depth + 1)) for key, inner in given]
        return Dict(pairs)
    if kind == "Tuple":
        return Tuple([space_from_dict(inner, depth + 1) for inner in given])
    if kind == "Discrete":
        n, start = _whole(given)
        return Discrete(n, start=start)
    if kind == "MultiBinary":
        shape, is_number = given
        return MultiBinary(_shape(shape)[0] if is_number is True else _shape(shape))
    if kind == "MultiDiscrete":
        shape, sizes, starts, dtype = given
        n = math.prod(_shape(shape))
        arrays = [np.array(_whole(x, n), np.int64).reshape(shape) for x in (sizes, starts)]
        return MultiDiscrete(arrays[0], start=arrays[1], dtype=_TYPES[dtype].type)
    if kind == "Box":
        shape, low, high, dtype = given
        n = math.prod(_shape(shape))
        lows, highs = (
            _bounds(x, n, none, _TYPES[dtype]).reshape(shape)
            for x, none in ((low, -np.inf), (high, np.inf))
        )
        return Box(lows, highs, dtype=_TYPES[dtype].type)
    raise ValueError(f"Expected the kind of a space, got {kind!r:.50}.")


def _finite(bound: NDArray[Any]) -> list[float | int | None]:
    return [x if math.isfinite(x) else None for x in bound.ravel().tolist()]


def _key(key: object) -> str | int:
    if type(key) not in (str, int):
        raise ValueError(f"Expected a text or whole number as a key, got {key!r:.50}.")
    return key  # type: ignore[return-value]


def _whole(given: object, n: int | None = None) -> list[int]:
    if (
        not isinstance(given, list)
        or not all(type(x) is int and abs(x) <= 2**53 for x in given)
        or len(given) != (len(given) if n is None else n)
    ):
        raise ValueError(f"Expected {'' if n is None else n} whole numbers, got {given!r:.100}.")
    return given


def _shape(given: object) -> list[int]:
    shape = _whole(given)
    if min(shape, default=1) < 0 or len(shape) > 32 or math.prod(shape) > MAX_NUMBERS:
        raise ValueError(f"Expected a shape of at most {MAX_NUMBERS} numbers, got {shape!r:.100}.")
    return shape


def _bounds(given: object, n: int, none: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(given, list) or len(given) != n:
        raise ValueError(f"Expected {n} bounds, got {given!r:.100}.")
    # Of integers of 64 bits, floats would keep 53.
    return np.array([none if x is None else x for x in given], dtype)
