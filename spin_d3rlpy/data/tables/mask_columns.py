"""Masks of a table's rows: columns of flags, or an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.masks import Bits, first_forbidden, is_choice, pack
from spin_d3rlpy.data.tables.cells import is_empty, read_flags
from spin_d3rlpy.data.tables.columns import Column, Name
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, NvecMismatchError, shown


def mask_columns(masks: object, actions: Sequence[Name], nvec: Sequence[int]) -> list[Name]:
    """Returns the names of the columns that masks are read from; none if they are an array.

    Raises:
        NvecMismatchError: not one column for each choice of an action.
    """
    if not isinstance(masks, Mapping):
        return []
    sizes = dict(zip(actions, nvec, strict=True))
    for name, columns in masks.items():
        if name not in sizes or isinstance(columns, str) or len(columns) != sizes[name]:
            expected = ", ".join(f"{m} of {shown(action)}" for action, m in sizes.items())
            raise NvecMismatchError(
                "Expected masks= to map action columns to one column for each of their choices "
                f"({expected}), got {shown(name)}: {shown(columns)}."
            )
    return [column for columns in masks.values() for column in columns]


def masks_of_rows(
    masks: Mapping[Name, Sequence[Name]] | NDArray[Any],
    columns: Mapping[Name, Column],
    actions: Sequence[Name],
    nvec: Sequence[int],
    state_only: NDArray[np.bool_],
) -> Bits:
    """Returns the masks of a table's rows as bits, `(rows, bytes)`.

    Args:
        masks: as of `from_table`.
        columns: of the table, by name.
        actions: columns of the slots.
        nvec: number of their choices.
        state_only: which rows are final states, `(rows,)`.

    Raises:
        InvalidDatasetError: a cell is no flag, or empty in a row with an action; an array of
            another shape or type.
    """
    rows = len(state_only)
    if not isinstance(masks, Mapping):
        given = np.asarray(masks)
        if len(given) != rows:
            raise InvalidDatasetError(
                f"Expected masks of the table's {rows} rows, got shape {given.shape}."
            )
        return pack(given, nvec)
    allowed = np.repeat(is_choice(nvec)[None], rows, axis=0)
    for action, names in masks.items():
        for choice, name in enumerate(names):
            column = columns[name]
            empty = is_empty(column, marks=False)
            wrong = np.flatnonzero(empty & ~state_only)
            if len(wrong):
                raise InvalidRowError(
                    f"Row {wrong[0]} has no {shown(name)}. Expected 1 (true, yes) where the choice "
                    "may be made, else 0; only final states may leave it empty.",
                    int(wrong[0]),
                )
            allowed[:, actions.index(action), choice] = read_flags(column) | empty
    return pack(allowed, nvec)


def require_allowed(
    bits: Bits,
    chosen: NDArray[np.integer[Any]],
    decided: NDArray[np.bool_],
    actions: Sequence[Name],
    values: Sequence[Sequence[Any]],
) -> None:
    """Checks the actions of the rows in which something was decided.

    Args:
        bits: masks of all rows.
        chosen: numbers of the choices, `(rows, N)`.
        decided: `(rows,)`.
        actions: columns of the slots.
        values: of their choices.

    Raises:
        InvalidDatasetError: a mask forbids its row's action; the text names row and column.
    """
    rows = np.flatnonzero(decided)
    forbidden = first_forbidden(bits[rows], chosen[rows], [len(known) for known in values])
    if forbidden is not None:
        at, slot, count = forbidden
        choice = values[slot][chosen[rows[at], slot]]
        raise InvalidRowError(
            f"Row {rows[at]} has {shown(actions[slot])} = {shown(choice)}, which its mask "
            f"forbids ({count} "
            "rows have such an action). Expected masks that allow what was done: look whether they "
            "are of the state before the action, and correct them or leave out these episodes.",
            int(rows[at]),
        )
