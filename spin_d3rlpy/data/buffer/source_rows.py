"""Which rows of a table a dataset's transitions were, so that what belongs to rows follows them.

Reading a table sorts its rows, leaves some out, and `select` and `split` do so again. An array of
one value for each row, such as known probabilities, must be reordered alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError


@dataclasses.dataclass(frozen=True)
class RowValues:
    """Values of a dataset's transitions, which know whose they are.

    Attributes:
        values: `(n, ...)`, in the order of the transitions.
        rows: `(n,)`, the row of the table that each one is of.
    """

    values: NDArray[Any]
    rows: NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class SourceRows:
    """The rows of a table that transitions are of.

    Attributes:
        rows: `(n,)` numbers of rows, from 0, by transition.
        count: rows of the table.
        kept: columns of the table, `(count,)` each, that `from_table(keep=...)` named.
    """

    rows: NDArray[np.int64]
    count: int
    kept: Mapping[str | int, NDArray[Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_whole(cls, n: int) -> SourceRows:
        """Returns those of n transitions in the order in which they were read."""
        return cls(np.arange(n), n)

    @property
    def is_whole(self) -> bool:
        """Whether transitions are all rows in their order."""
        return len(self.rows) == self.count and bool((np.diff(self.rows) == 1).all())

    def select(self, steps: NDArray[np.int64]) -> SourceRows:
        """Returns those of some transitions."""
        return dataclasses.replace(self, rows=self.rows[steps])

    def align(self, values: object) -> RowValues:
        """Returns the transitions' values, given one value for each row of the table.

        Raises:
            InvalidDatasetError: there are more or fewer values than rows.
        """
        array = np.asarray(values)
        if array.ndim < 1 or len(array) != self.count:
            raise InvalidDatasetError(
                f"Expected one value for each of the {self.count} rows that the dataset was read "
                f"from, got shape {array.shape}."
            )
        return RowValues(array[self.rows], self.rows)

    def check(self, values: object, what: str) -> NDArray[Any]:
        """Returns the transitions' values, given so or as `RowValues`.

        Args:
            values: `RowValues` of these transitions; the name of a kept column; or an array or list
                of one value for each transition, if they are all rows in their order.
            what: names the values in errors.

        Raises:
            InvalidDatasetError: they are of other rows, or it cannot be known of which.
        """
        if isinstance(values, str):
            values = self.column(values)
        if isinstance(values, RowValues):
            if not np.array_equal(values.rows, self.rows):
                raise InvalidDatasetError(
                    f"The {what} are of other rows than this dataset's transitions. Call rows_of "
                    "of this dataset, after select and split."
                )
            return values.values
        array = np.asarray(values)
        if not self.is_whole:
            raise InvalidDatasetError(
                f"It cannot be known whose {what} these are: the dataset's {len(self.rows)} "
                f"transitions are not the {self.count} rows that it was read from in their order. "
                "Pass dataset.rows_of(values) with one value for each of those rows, or "
                "name the column in from_table(keep=[...]) and pass its name."
            )
        return array

    def column(self, name: str | int) -> RowValues:
        """Returns a kept column's values; InvalidDatasetError if there is none of this name."""
        if name not in self.kept:
            known = ", ".join(map(repr, self.kept)) or "none"
            raise InvalidDatasetError(
                f"Expected a column that from_table(keep=[...]) named ({known}), got {name!r:.100}."
            )
        return self.align(self.kept[name])
