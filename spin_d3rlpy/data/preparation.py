"""How a table's columns become numbers: learned from a log, kept with it and with its policies."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsFloat, get_args

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError

Floats = NDArray[np.float64]
Kind = Literal["number", "date", "boolean", "category"]
Missing = Literal["refuse", "mean", "forward"]

KEY = "table_preparation"  # in Minari's metadata and in policy files
VERSION = 1
MOST_CATEGORIES = 100
_SHOWN = 20
_BOOLEANS = {"false": 0.0, "no": 0.0, "true": 1.0, "yes": 1.0}
_KIND_IN_WORDS: dict[Kind, str] = {  # what a column of this kind holds; categories list theirs
    "number": "numbers",
    "date": "dates such as 2024-05-31 or 2024-05-31T08:30:00",
    "boolean": "true or false, yes or no, 1 or 0",
}
_EMPTY = {"", "nan", "NaN", "NaT"}  # also what other libraries write for an empty cell
_DAY = 86_400.0


@dataclasses.dataclass(frozen=True)
class ColumnPreparation:
    """How one column of the state becomes one or several features.

    Attributes:
        name: of the column.
        kind: a number, a date (days since `subtract`, which is days since 1970), a boolean (0 or
            1), or a word, one of `categories` (a feature each, 1 where it is the row's).
        categories: the words, in the order of their features.
        subtract: number that is subtracted.
        fill: mean of the log's numbers, in place of a missing one; None if none was missing there,
            and then none may be.
    """

    name: str
    kind: Kind
    categories: list[str] = dataclasses.field(default_factory=list)
    subtract: float = 0.0
    fill: float | None = None

    @property
    def features(self) -> list[str]:
        """Names of its features; one that was missing in the log has a flag as its last."""
        own = [f"{self.name}={word}" for word in self.categories] or [self.name]
        return own if self.fill is None else [*own, f"{self.name} is missing"]

    def encode(self, values: Floats, missing: NDArray[np.bool_]) -> Floats:
        """Returns features `(rows, features)` of numbers, or of categories' numbers, `(rows,)`."""
        if self.kind == "category":
            own = np.zeros((len(values), len(self.categories)))
            known = np.flatnonzero(~np.isnan(values))
            own[known, values[known].astype(np.int64)] = 1.0
        else:
            filled = np.where(np.isnan(values), self.fill or 0.0, values)
            own = filled[:, None]
        return own if self.fill is None else np.column_stack([own, missing])


@dataclasses.dataclass(frozen=True)
class TablePreparation:
    """How a table's rows become states, and choices become the table's values.

    Attributes:
        columns: of the state, in order.
        actions: names of the action columns.
        choices: their values, in the order of their numbers.
        missing: what stands in for a missing value: nothing (`"refuse"`), the log's mean, or the
            last value of the same episode and, before there is one, the mean (`"forward"`).
        episode: column by which rows belong together, for `"forward"`.
    """

    columns: list[ColumnPreparation]
    actions: list[str]
    choices: list[list[Any]]
    missing: Missing
    episode: str

    @property
    def features(self) -> list[str]:
        """Names of the state's features."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def features_of(self) -> dict[str, list[int]]:
        """Numbers of the state's features that each column became, by the column's name."""
        numbers, first = {}, 0
        for column in self.columns:
            numbers[column.name] = list(range(first, first + len(column.features)))
            first += len(column.features)
        return numbers

    def states(
        self, table: Mapping[str, NDArray[Any]], groups: Sequence[NDArray[np.int64]]
    ) -> Floats:
        """Returns states `(rows, obs)`.

        Args:
            table: columns by name.
            groups: rows of each episode, in order of time.

        Raises:
            InvalidDatasetError: a cell is invalid, unknown or missing; the text names row, column.
        """
        parts = []
        for column in self.columns:
            cells = table[column.name]
            values = read_cells(cells, column.name, column.kind, column.categories)
            values = values - column.subtract
            missing = np.isnan(values)
            if np.isinf(values).any():
                row = int(np.isinf(values).argmax())
                raise InvalidDatasetError(
                    f"Row {row} has {column.name!r} = {cells[row]}, which is not finite. Correct "
                    "it, or leave it empty and pass missing='mean'."
                )
            if column.fill is None and missing.any():
                row = int(missing.argmax())
                raise InvalidDatasetError(
                    f"Row {row} has no {column.name!r}, which no row of the log lacked. Fill it "
                    "in, or train on a log with missing values, read with missing='mean'."
                )
            if self.missing == "forward":
                values = fill_forward(values, groups)
            parts.append(column.encode(values, missing))
        return np.concatenate(parts, axis=1)

    def named(self, actions: NDArray[Any]) -> list[dict[str, Any]]:
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
            if content.pop("version") != VERSION:
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
        names = [column.name for column in self.columns] + [*self.actions, self.episode]
        numbers = [column.subtract for column in self.columns]
        numbers += [column.fill for column in self.columns if column.fill is not None]
        words = [word for column in self.columns for word in column.categories]
        is_valid = (
            all(isinstance(text, str) for text in [*names, *words])
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
    cells: NDArray[Any],
    name: str,
    subtract: float | None,
    missing: Missing,
    is_category: bool,
) -> ColumnPreparation:
    """Finds out how a column of a log becomes features.

    The first cell that is not empty decides what all of them must be.

    Args:
        cells: `(rows,)`.
        name: of the column.
        subtract: number to subtract; None: 0, or a date's earliest day.
        missing: whether cells may be empty.
        is_category: whether its values are names, even if they look like numbers.

    Raises:
        InvalidDatasetError: a cell is of another kind than the first, or empty and none may be, all
            are empty, or there are more than 100 words.
    """
    empty = is_empty(cells)
    if empty.any() and missing == "refuse":
        raise InvalidDatasetError(
            f"Row {int(empty.argmax())} has no {name!r}. Pass missing='mean' or 'forward', which "
            "fill it in and add a feature that says so, or fill it in yourself."
        )
    if empty.all():
        raise InvalidDatasetError(f"Column {name!r} is empty. Leave it out of observations=.")
    kind = "category" if is_category else kind_of(cells[int((~empty).argmax())])
    categories = _words(cells[~empty], name) if kind == "category" else []
    values = read_cells(cells, name, kind, categories)
    if subtract is None:
        subtract = float(np.floor(np.nanmin(values))) if kind == "date" else 0.0
    fill = float(np.nanmean(values - subtract)) if empty.any() else None
    if kind == "category" and fill is not None:
        fill = 0.0  # a missing word is none of them
    return ColumnPreparation(name, kind, categories, subtract, fill)


def kind_of(cell: object) -> Kind:
    """Returns what a cell looks like."""
    if isinstance(cell, bool | np.bool_) or str(cell).strip().lower() in _BOOLEANS:
        return "boolean"
    if _number(cell) is not None:
        return "number"
    return "category" if _days(cell) is None else "date"


def read_cells(cells: NDArray[Any], name: str, kind: Kind, categories: Sequence[str]) -> Floats:
    """Returns a column as numbers `(rows,)`; NaN where it is empty.

    Dates become days since 1970, words their positions among the categories.

    Raises:
        InvalidDatasetError: a cell is not of this kind, or a word that is not known.
    """
    if kind == "number" and cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    known = {word: float(i) for i, word in enumerate(categories)}
    values = np.full(len(cells), np.nan)
    empty = is_empty(cells)
    for row in np.flatnonzero(~empty).tolist():
        cell = cells[row]
        value: float | None
        if kind == "category":
            value = known.get(str(cell).strip())
        elif kind == "boolean":
            value = _boolean(cell)
        else:
            value = _number(cell) if kind == "number" else _days(cell)
        if value is None:
            raise InvalidDatasetError(_expected(kind, name, row, cell, categories))
        values[row] = value
    return values


def read_times(cells: NDArray[Any], name: str) -> Floats:
    """Returns numbers or dates of a column that orders rows.

    Raises:
        InvalidDatasetError: a cell is empty, or as of `read_cells`.
    """
    empty = is_empty(cells)
    if empty.any():
        raise InvalidDatasetError(f"Row {int(empty.argmax())} has no {name!r}, by which to order.")
    kind: Kind = "date" if kind_of(cells[0]) == "date" else "number"
    return read_cells(cells, name, kind, [])


def fill_forward(values: Floats, groups: Sequence[NDArray[np.int64]]) -> Floats:
    """Returns values in which NaN is the last number before it in its episode, if any."""
    filled = values.copy()
    for rows in groups:
        own = filled[rows]
        last = np.maximum.accumulate(np.where(np.isnan(own), -1, np.arange(len(own))))
        filled[rows] = np.where(last >= 0, own[last], np.nan)
    return filled


def is_empty(cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which cells are empty; NaN and NaT are what other libraries make of one."""
    if cells.dtype.kind in "biu":
        return np.zeros(len(cells), bool)
    if cells.dtype.kind in "fM":
        return np.asarray(cells != cells)
    # NaN is not equal to itself.
    is_empty_cell = [v is None or bool(v != v) or str(v).strip() in _EMPTY for v in cells.tolist()]
    return np.array(is_empty_cell, bool)


def _words(cells: NDArray[Any], name: str) -> list[str]:
    words = sorted({str(cell).strip() for cell in cells.tolist()})
    if len(words) > MOST_CATEGORIES:
        raise InvalidDatasetError(
            f"Column {name!r} has {len(words):,} different words, more than {MOST_CATEGORIES}: "
            f"{', '.join(words[:3])}, ... Group them, or leave the column out of observations=."
        )
    return words


def _expected(kind: Kind, name: str, row: int, cell: object, categories: Sequence[str]) -> str:
    plain = cell.item() if isinstance(cell, np.generic) else cell
    cell_text = f"row {row} has {plain!r}"
    if kind == "category":
        words = ", ".join(categories[:_SHOWN])
        return f"Expected column {name!r} to hold one of: {words}; {cell_text}. Correct it."
    return (
        f"Expected column {name!r} to hold {_KIND_IN_WORDS[kind]}, {cell_text}. Correct it or, if "
        "the column's values are names, list it in categories=."
    )


def _number(cell: object) -> float | None:
    if isinstance(cell, np.datetime64):  # which float() takes for nanoseconds
        return None
    if not isinstance(cell, str | SupportsFloat):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _boolean(cell: object) -> float | None:
    known = _BOOLEANS.get(str(cell).strip().lower())
    number = _number(cell)
    return number if known is None and number in (0.0, 1.0) else known


def _days(cell: object) -> float | None:
    """Returns days since 1970 of an ISO date; one without a time zone counts as UTC."""
    if isinstance(cell, np.datetime64):
        return float(cell.astype("datetime64[us]").astype(np.int64)) / 1e6 / _DAY
    try:
        moment = datetime.datetime.fromisoformat(str(cell).strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() / _DAY
