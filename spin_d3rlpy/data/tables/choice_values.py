"""Choices of a table's action columns by their values, compared as what they are."""

from __future__ import annotations

import datetime
import fractions
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.tables import texts
from spin_d3rlpy.data.tables.cells import PLAIN, Locale
from spin_d3rlpy.data.tables.columns import Bools, Column
from spin_d3rlpy.errors import InvalidRowError, listed, shown


class Values:
    """Values that a column may have, compared as what they are.

    Text equals the same text, numbers equal numbers, also those that a file writes as text: "50.0"
    is 50, "007" is not 7. A number in the table equals text that writes it, as a shell passes it.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)
        self.texts: dict[str, int] = {}
        self._numbers: dict[int | float, int] = {}
        self._written: dict[int | float, int | None] = {}  # None: by several texts
        for i, value in enumerate(values):
            if isinstance(value, str):
                self.texts.setdefault(value.strip(), i)
                number = texts.exact_number(value.strip())
                if number is not None:
                    self._written[number] = None if number in self._written else i
            else:
                self._numbers.setdefault(value, i)

    def repeated(self) -> Any:
        """Returns a value that is there twice, also as number and as text; None if none is."""
        for i, value in enumerate(self.values):
            first = self.position(value)
            if first is not None and first != i:
                return value
            if not isinstance(value, str) and self._written.get(value, i) != i:
                return value
        return None

    def position(self, cell: object, decimal: str | None = None) -> int | None:
        """Returns the number of a cell's value; None if it is none of them."""
        if isinstance(cell, str):
            text = cell.strip()
            if text in self.texts:
                return self.texts[text]
            number = texts.exact_number(text, decimal)
            return None if number is None else self._numbers.get(number)
        if isinstance(cell, datetime.date):
            return self.texts.get(str(cell))
        if isinstance(cell, Decimal | fractions.Fraction):
            cell = int(cell) if cell == int(cell) else float(cell)
        if not isinstance(cell, int | float):
            return None
        place = self._numbers.get(cell, self._written.get(cell))
        if place is None and isinstance(cell, bool):
            return next((i for t, i in self.texts.items() if t.lower() == str(cell).lower()), None)
        return place

    def as_stored(self, dtype: np.dtype[Any]) -> Values:
        """Returns the same values, numbers rounded as a type of floats has them."""
        rounded = [
            v if isinstance(v, str) else np.asarray(v).astype(dtype).item() for v in self.values
        ]
        return Values(rounded)


def read_choices(
    column: Column, values: Sequence[Any], skip: Bools, locale: Locale = PLAIN
) -> NDArray[np.int64]:
    """Returns the numbers of a column's values; 0 in skipped cells.

    Raises:
        InvalidDatasetError: another value; the text names row and column.
    """
    known = Values(values)
    if column.is_typed and column.values.dtype in (np.float16, np.float32):
        known = known.as_stored(column.values.dtype)
    codes, cells = column.distinct()
    places = [known.position(cell, locale.decimal) for cell in cells]
    numbers = np.array([*(-1 if place is None else place for place in places), -1])[codes]
    unknown = (numbers < 0) & ~skip
    if unknown.any():
        row = int(unknown.argmax())
        raise InvalidRowError(
            f"Row {row} has {shown(column.name)} = {shown(column.cell(row))}, which is not one of "
            f"its choices: {listed(map(shown, values))}.",
            row,
        )
    return np.where(skip, 0, numbers)
