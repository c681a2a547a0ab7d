"""Masks of actions as environments give them, as one row for each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Space, Tuple
from numpy.typing import NDArray

from spin_envs.action_numbers import ActionNumbers, Part, Path, place

Allowed = list[NDArray[np.bool_]]  # of each slot, `(its choices,)`


def allowed_rows(numbers: ActionNumbers, nvec: Sequence[int], mask: Any) -> NDArray[np.bool_]:
    """Returns which choices a mask allows, `(N, K)`; False past a slot's last choice.

    Args:
        numbers: what actions are made of.
        nvec: number of choices of each of the N slots.
        mask: as `space.sample(mask)` takes it in Gymnasium: a dict or tuple of the parts' masks,
            in which a missing one or None allows all; of `Discrete`, `(n,)`; of `MultiDiscrete`,
            an array for each slot; of `MultiBinary`, what each must be, 0 or 1, or 2 for any. Or
            rows of all slots, `(N, K)`, or flat, `(S,)`, slot after slot's choices; so may be the
            masks of parts, of whose bins `Box` has rows.

    Raises:
        ValueError: it is of another form; the text names the part.
    """
    sizes = list(nvec)
    rows = _rows(mask, sizes)
    if rows is None:
        of_part = {
            part.path: (part, sizes[at])
            for part, at in zip(numbers.parts, numbers.slices, strict=True)
        }
        rows = _of_space(numbers.space, mask, (), of_part)
    allowed = np.zeros((len(sizes), max(sizes)), np.bool_)
    for row, values in zip(allowed, rows, strict=True):
        row[: len(values)] = values
    return allowed


def _of_space(
    space: Space[Any], mask: Any, path: Path, of_part: Mapping[Path, tuple[Part, list[int]]]
) -> Allowed:
    if not isinstance(space, Dict | Tuple):
        part, sizes = of_part[path]
        return _of_part(part, mask, sizes)
    keys = list(space.spaces) if isinstance(space, Dict) else list(range(len(space.spaces)))
    if isinstance(space, Dict):
        fits = mask is None or (isinstance(mask, Mapping) and set(mask) <= set(keys))
        expected = f"a dict with the keys {keys}"
    else:
        is_list = isinstance(mask, Sequence | np.ndarray) and not isinstance(mask, str)
        fits = mask is None or (is_list and len(mask) == len(keys))
        expected = f"{len(keys)} masks, one of each part"
    if not fits:
        raise ValueError(f"Expected the mask of {place(path)} as {expected}, got {mask!r:.100}.")
    if mask is None:
        mask = {}
    return [
        row
        for key in keys
        for row in _of_space(
            space[key],  # type: ignore[index]
            mask.get(key) if isinstance(mask, Mapping) else mask[key],
            (*path, key),
            of_part,
        )
    ]


def _of_part(part: Part, mask: Any, sizes: list[int]) -> Allowed:
    if mask is None:
        return [np.ones(size, np.bool_) for size in sizes]
    rows = None
    if isinstance(part.space, MultiBinary) and np.shape(mask) == part.shape:
        must = np.asarray(mask).ravel()
        if np.isin(must, (0, 1, 2)).all():
            rows = [np.array([x != 1, x != 0]) for x in must]
    else:
        rows = _rows(mask, sizes)
        if rows is None and len(part.shape) > 1:
            rows = _rows(_nested(mask, len(part.shape) - 1), sizes)
    if rows is None:
        of = f"{sizes[0]} numbers 0 or 1, one for each choice"
        each = of if len(sizes) == 1 else f"a row of 0 and 1 for each slot, of sizes {sizes}"
        raise ValueError(f"Expected the mask of {part.where} as {each}, got {mask!r:.100}.")
    return rows


def _nested(mask: Any, depth: int) -> list[Any]:
    """Returns the rows of an array of rows, such as `(2, 3)` of them, in a list."""
    try:
        rows = list(mask)
        return rows if depth == 0 else [row for inner in rows for row in _nested(inner, depth - 1)]
    except TypeError:  # it has fewer axes
        return []


def _rows(mask: Any, sizes: list[int]) -> Allowed | None:
    """Returns rows of a mask that has one for each slot, or is flat; None of another form."""
    if isinstance(mask, Mapping | str) or mask is None:
        return None
    try:
        given = [np.asarray(row) for row in mask]
    except (TypeError, ValueError):  # a number; rows of dicts and the like
        return None
    if len(given) == sum(sizes) and all(row.ndim == 0 for row in given):
        given = np.split(np.array(given), np.cumsum(sizes)[:-1])
    if len(given) != len(sizes):
        return None
    widths = [len(row) if row.ndim == 1 else -1 for row in given]
    if any(w not in (n, max(sizes)) for w, n in zip(widths, sizes, strict=True)):
        return None
    if any(row.dtype.kind not in "biuf" or not np.isin(row, (0, 1)).all() for row in given):
        return None
    return [row[:n].astype(np.bool_) for row, n in zip(given, sizes, strict=True)]
