"""Cells of a table: choices by their values, and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.preparation import is_empty
from spin_d3rlpy.errors import InvalidDatasetError

SHOWN_VALUES = 20
_FLAGS = (0, 1, "false", "true", "no", "yes")


def read_choices(
    column: NDArray[Any], name: str, values: Sequence[Any], skip: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns the numbers of a column's values; 0 in skipped cells.

    Raises:
        InvalidDatasetError: another value; the text names row and column.
    """
    known = {plain(value): i for i, value in enumerate(values)}
    numbers = np.zeros(len(column), np.int64)
    for row, value in enumerate(column.tolist()):
        if not skip[row] and plain(value) not in known:
            first_choices = ", ".join(map(str, list(known)[:SHOWN_VALUES]))
            raise InvalidDatasetError(
                f"Row {row} has {name!r} = {value!r}, which is not one of its choices: "
                f"{first_choices}."
            )
        numbers[row] = 0 if skip[row] else known[plain(value)]
    return numbers


def plain(value: Any) -> Any:
    """Normalizes 1, 1.0, "1" and "1.0"; other text is unchanged."""
    try:
        return float(value)
    except (ValueError, TypeError):
        return str(value).strip()


def read_flags(column: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Returns which cells are 1, true or yes; False in empty ones.

    Raises:
        InvalidDatasetError: a cell is no flag; the text names row and column.
    """
    flags = np.array([str(value).lower() for value in column.tolist()], object)
    return (read_choices(flags, name, _FLAGS, is_empty(column)) % 2).astype(bool)
