"""How a table's columns become numbers: learned from a log, kept with it and with its policies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.rounding import ColumnRounding
from spin_d3rlpy.data.tables.cells import (
    Kind,
    Locale,
    kind_of,
    learn_words,
    read_booleans,
    read_days,
    read_numbers,
    read_words,
    typed,
)
from spin_d3rlpy.data.tables.columns import Bools, Column, Name
from spin_d3rlpy.data.tables.row_arrays import RowArrays
from spin_d3rlpy.data.tables.texts import DECIMALS
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, shown

Floats = NDArray[np.float64]
Missing = Literal["refuse", "mean", "forward"]

KEY = "table_preparation"  # in Minari's metadata and in policy files
VERSION = 2
_READ = (1, VERSION)  # the first had no locales and one column of episodes


def index_type(rows: int) -> type[np.signedinteger[Any]]:
    """Returns a type that holds numbers of rows: small, as there may be very many rows."""
    return np.int32 if rows < 2**31 else np.int64


@dataclasses.dataclass(frozen=True)
class EpisodeRows:
    """Which rows of a table belong together, in order of time.

    Attributes:
        order: the table's rows, episode after episode, `(rows,)`.
        starts: where in `order` each episode begins, and the number of rows, `(episodes + 1,)`.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each episode."""
        return np.diff(self.starts)


@dataclasses.dataclass(frozen=True)
class ColumnPreparation:
    """How one column of the state becomes one or several features.

    Attributes:
        name: of the column.
        kind: a number, a date (days since `subtract`, which is days since 1970), a boolean (0 or
            1), or a word, one of `categories` (a feature each, 1 where it is the row's).
        categories: the words, in the order of their features.
        subtract: number that is subtracted: given, or the smallest where float32 would make
            different values equal.
        fill: mean of the log's numbers, in place of a missing one; None if none was missing there,
            and then none may be.
        decimal: the mark before decimals in text, if it was said.
        dates: how text writes dates, if it was said.
    """

    name: Name
    kind: Kind
    categories: list[str] = dataclasses.field(default_factory=list)
    subtract: float = 0.0
    fill: float | None = None
    decimal: str | None = None
    dates: str | None = None

    @property
    def features(self) -> list[str]:
        """Names of its features; one that was missing in the log has a flag as its last."""
        own = [f"{self.name}={word}" for word in self.categories] or [str(self.name)]
        return own if self.fill is None else [*own, f"{self.name} is missing"]

    def read(self, column: Column) -> Floats:
        """Returns a column's numbers less `subtract`, or its words' positions; NaN where empty.

        Raises:
            InvalidDatasetError: a cell is of another kind; the text names row and column.
        """
        locale = Locale(self.decimal, self.dates)
        if self.kind == "category":
            return read_words(column, self.categories)
        if self.kind == "boolean":
            return read_booleans(column, locale)
        if self.kind == "date":
            return read_days(column, locale) - self.subtract
        return _difference(column, self.subtract, locale)

    def encode(self, values: Floats, missing: Bools) -> list[Floats]:
        """Returns the features `(rows,)` of what `read` returned."""
        if self.kind == "category":
            own = [(values == i).astype(np.float64) for i in range(len(self.categories))]
        elif self.fill is None:
            own = [values]
        else:
            own = [np.where(np.isnan(values), self.fill, values)]
        return own if self.fill is None else [*own, missing.astype(np.float64)]


def _difference(column: Column, subtract: float, locale: Locale) -> Floats:
    """Returns a column's numbers less a number, which whole numbers keep exactly."""
    is_whole = column.is_typed and column.values.dtype in (np.int64, np.uint64)
    if not is_whole or not subtract or subtract != np.rint(subtract) or abs(subtract) >= 2.0**62:
        numbers = read_numbers(column, locale)
        return numbers - subtract if subtract else numbers
    # Modulo 2**64 and back: right wherever the difference has 63 bits, as it must to matter.
    exact = column.values.astype(np.int64) - np.int64(subtract)
    rough = column.values.astype(np.float64) - subtract
    values = np.where(np.abs(rough) < 2.0**62, exact.astype(np.float64), rough)
    values[column.empty] = np.nan
    return np.asarray(values, np.float64)


@dataclasses.dataclass(frozen=True)
class TablePreparation:
    """How a table's rows become states, and choices become the table's values.

    Attributes:
        columns: of the state, in order.
        actions: names of the action columns.
        choices: their values, in the order of their numbers.
        missing: what stands in for a missing value: nothing (`"refuse"`), the log's mean, or the
            last value of the same episode and, before there is one, the mean (`"forward"`).
        episode: column, or columns, by which rows belong together, for `"forward"`.
    """

    columns: list[ColumnPreparation]
    actions: list[Name]
    choices: list[list[Any]]
    missing: Missing
    episode: Name | list[Name]

    @property
    def features(self) -> list[str]:
        """Names of the state's features."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def features_of(self) -> dict[Name, list[int]]:
        """Numbers of the state's features that each column became, by the column's name."""
        numbers: dict[Name, list[int]] = {}
        first = 0
        for column in self.columns:
            numbers[column.name] = list(range(first, first + len(column.features)))
            first += len(column.features)
        return numbers

    @property
    def episode_columns(self) -> list[Name]:
        """The columns by which rows belong together."""
        return list(self.episode) if isinstance(self.episode, list) else [self.episode]

    def states(
        self,
        table: Mapping[Name, Column],
        episodes: EpisodeRows | None,
        rows: NDArray[np.int64] | None = None,
        arrays: RowArrays | None = None,
    ) -> NDArray[np.float32]:
        """Returns states `(rows, obs)`, made column by column in one array.

        Args:
            table: columns by name.
            episodes: rows that belong together, which `missing="forward"` needs.
            rows: of the table, those wanted; None: all.
            arrays: where the states are; None: in memory.

        Raises:
            InvalidDatasetError: a cell is invalid, unknown or missing (the text names row and
                column), or memory has no room.
        """
        arrays = arrays or RowArrays()
        features = len(self.features)
        states = np.empty((0, features), np.float32)
        at = 0
        for preparation in arrays.watched("Preparing states", self.columns):
            column = table[preparation.name]
            if at == 0:
                states = arrays.states(len(column) if rows is None else len(rows), features)
            values = preparation.read(column)
            missing = np.isnan(values)
            if preparation.fill is None and missing.any():
                row = int(missing.argmax())
                raise InvalidRowError(
                    f"Row {row} has no {shown(preparation.name)}, which no row of the log lacked. "
                    "Fill it in, or train on a log with missing values, read with missing='mean'.",
                    row,
                )
            if self.missing == "forward" and episodes is not None:
                values = fill_forward(values, episodes)
            for feature in preparation.encode(values, missing):
                rounded = as_float32(feature, column)
                states[:, at] = rounded if rows is None else rounded[rows]
                at += 1
        return states

    def named(self, actions: NDArray[Any]) -> list[dict[Any, Any]]:
        """Returns actions `(B, N)` by the table's names and values."""
        return [
            {
                name: values[choice]
                for name, values, choice in zip(self.actions, self.choices, row, strict=True)
            }
            for row in actions.tolist()
        ]

    def to_json(self) -> str:
        """Returns it as JSON."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: object) -> TablePreparation:
        """Inverse of `to_json`; the text may be untrusted.

        Raises:
            InvalidDatasetError: it is none.
        """
        try:
            content = json.loads(str(text))
            if content.pop("version") not in _READ:
                raise ValueError("it is of another version")
            columns = [ColumnPreparation(**column) for column in content.pop("columns")]
            preparation = cls(columns=columns, **content)
            preparation._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidDatasetError(
                f"The preparation of the table's columns is damaged: {error}. Read the table again."
            ) from error
        return preparation

    def _check(self) -> None:
        names = [column.name for column in self.columns]
        names += [*self.actions, *self.episode_columns]
        numbers = [column.subtract for column in self.columns]
        numbers += [column.fill for column in self.columns if column.fill is not None]
        words = [word for column in self.columns for word in column.categories]
        is_valid = (
            all(type(name) in (str, int) for name in names)
            and all(isinstance(text, str) for text in words)
            and all(c.decimal in (None, *DECIMALS) for c in self.columns)
            and all(c.dates is None or isinstance(c.dates, str) for c in self.columns)
            and all(isinstance(x, int | float) and np.isfinite(x) for x in numbers)
            and all(column.kind in get_args(Kind) for column in self.columns)
            and all(bool(c.categories) == (c.kind == "category") for c in self.columns)
            and self.missing in get_args(Missing)
            and len(self.actions) == len(self.choices)
            and all(isinstance(values, list) and values for values in self.choices)
        )
        if not is_valid:
            raise ValueError("an entry is of the wrong kind")


def read_preparation(
    text: object, observation_size: int, nvec: Sequence[int]
) -> TablePreparation | None:
    """Returns the preparation kept with a dataset or policy, if any.

    Raises:
        InvalidDatasetError: it is damaged or does not fit the numbers of features and choices.
    """
    if text is None:
        return None
    preparation = TablePreparation.from_json(text)
    sizes = [len(values) for values in preparation.choices]
    if len(preparation.features) != observation_size or sizes != list(nvec):
        raise InvalidDatasetError(
            f"The preparation of the table's columns gives {len(preparation.features)} features "
            f"and choices {sizes}, expected {observation_size} and {list(nvec)}. Read the "
            "table again."
        )
    return preparation


def learn_column(
    column: Column,
    subtract: float | None,
    missing: Missing,
    is_category: bool,
    locale: Locale,
    rounding: ColumnRounding,
) -> ColumnPreparation:
    """Finds out how a column of a log becomes features.

    Args:
        column: of the log.
        subtract: number to subtract; None: a date's earliest day, the smallest of numbers that
            float32 cannot tell apart, else 0.
        missing: whether cells may be empty.
        is_category: whether its values are names, even if they look like numbers.
        locale: how its text writes numbers and dates.
        rounding: is told what float32 and outliers do to the column.

    Raises:
        InvalidDatasetError: cells are of several kinds, or empty and none may be, all are empty, or
            there are more than 100 words.
    """
    name, raw = column.name, column
    column = column if is_category else typed(column, locale)
    kind, empty = kind_of(column, locale, is_category)
    if empty.all():
        raise InvalidDatasetError(f"Column {shown(name)} is empty. Leave it out of observations=.")
    if empty.any() and missing == "refuse":
        row = int(empty.argmax())
        cell = raw.cell(row)
        mark = f" (its cell is {shown(cell)})" if isinstance(cell, str) and cell.strip() else ""
        raise InvalidRowError(
            f"Row {row} has no {shown(name)}{mark}. Pass missing='mean' or 'forward', which fill it"
            " in and add a feature that says so, or fill it in yourself.",
            row,
        )
    learned = ColumnPreparation(name, kind, decimal=locale.decimal, dates=locale.dates)
    if kind == "category":
        words = learn_words(column, empty)
        # A missing word is none of them.
        return dataclasses.replace(learned, categories=words, fill=0.0 if empty.any() else None)
    given = subtract is not None
    if subtract is None and kind == "date":
        subtract = float(np.floor(np.nanmin(learned.read(column))))
    learned = dataclasses.replace(learned, subtract=float(subtract or 0.0))
    known = learned.read(column)[~empty]
    if kind != "boolean":
        as_float32(known, column, ~empty)
        shift = rounding.look(name, known, column_fits(column), given, learned.subtract)
        learned = dataclasses.replace(learned, subtract=learned.subtract + shift)
        known = known if not shift else learned.read(column)[~empty]
    return dataclasses.replace(learned, fill=float(known.mean()) if empty.any() else None)


def column_fits(column: Column) -> bool:
    """Returns whether float32 holds every value of the column's type."""
    return column.is_typed and bool(np.can_cast(column.values.dtype, np.float32))


def as_float32(
    values: NDArray[np.floating[Any]], column: Column, filled: Bools | None = None
) -> NDArray[np.float32]:
    """Returns a column's numbers rounded.

    Args:
        values: `(rows,)`, or `(filled,)` if these are of some rows only.
        column: that they are of.
        filled: which rows, `(rows,)`.

    Raises:
        InvalidDatasetError: one is not finite, before or after; the text names row and column.
    """
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    wrong = np.isinf(rounded)
    if wrong.any():
        place = int(wrong.argmax())
        row = place if filled is None else int(np.flatnonzero(filled)[place])
        raise InvalidRowError(
            f"Row {row} has {shown(column.name)} = {_unquoted(column.cell(row))}, which is not "
            "finite as float32. Correct it, or leave it empty and pass missing='mean'.",
            row,
        )
    return rounded


def _unquoted(cell: object) -> str:
    text = shown(cell)
    return text[1:-1] if text.startswith("'") and text.endswith("'") else text


def fill_forward(values: Floats, episodes: EpisodeRows) -> Floats:
    """Returns values in which NaN is the last number before it in its episode, if any."""
    own = values[episodes.order]
    last = np.arange(len(own), dtype=index_type(len(own)))
    last[np.isnan(own)] = -1
    np.maximum.accumulate(last, out=last)
    is_known = last >= np.repeat(episodes.starts[:-1].astype(last.dtype), episodes.lengths)
    known = own[last]
    known[~is_known] = np.nan
    own[episodes.order] = known  # its memory, as there may be very many rows
    return own
