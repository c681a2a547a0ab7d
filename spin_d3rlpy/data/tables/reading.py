"""Tables of users: CSV and Parquet files and data frames, as columns by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from spin_d3rlpy.data.tables.columns import Column, Name, as_column, place_of
from spin_d3rlpy.data.tables.parts import Parts, is_lack_of_memory, open_files
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, shown
from spin_d3rlpy.files.untrusted import available_memory


class Columns(Protocol):
    """Columns by name: a mapping of arrays, a pandas, polars or pyarrow table."""

    def __getitem__(self, name: Any, /) -> Any: ...


class Table(Mapping[Name, Column]):
    """Wanted columns, each read when it is asked for and not kept.

    Args:
        columns: how to read each, by the name that was asked for.
    """

    def __init__(self, columns: Mapping[Name, Callable[[], Column]]) -> None:
        self._columns = columns
        self._rows: tuple[int, Name] | None = None

    def __getitem__(self, name: Name) -> Column:
        """Returns a column.

        Raises:
            InvalidDatasetError: its type cannot be read, or it has not as many rows as others.
        """
        column = self._columns[name]()
        if self._rows is None:
            self._rows = len(column), name
        rows, first = self._rows
        if len(column) != rows:
            raise InvalidDatasetError(
                f"Expected columns of the same length: {shown(first)} has {rows:,} rows, "
                f"{shown(name)} has {len(column):,}."
            )
        return column

    def __iter__(self) -> Iterator[Name]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@contextmanager
def open_table(
    table: str | Path | Columns,
    wanted: Sequence[Name],
    open_parts: Callable[[Path, Sequence[Name]], Parts] = open_files,
) -> Iterator[Table]:
    """Finds the wanted columns of a table; errors about its content, also later, name its files.

    Args:
        table: a file, a folder of files, or columns by name.
        wanted: names; one that is not there may also stand for the only one that is written so,
            such as 0 for "0" in a file.
        open_parts: opens files.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidDatasetError: a column is missing or its name is there twice, this is no table, or
            memory has no room.
        MissingDependencyError: a Parquet file without pyarrow.
    """
    if not isinstance(table, str | Path):
        with _enough_memory("the table"):
            yield _of_frame(table, wanted)
        return
    with _enough_memory(table):
        try:
            parts = open_parts(Path(table), wanted)
            try:
                yield Table({name: partial(parts.column, name) for name in wanted})
            except InvalidRowError as error:
                if not parts.is_folder:
                    raise
                raise parts.located(error) from error
        except InvalidDatasetError as error:
            raise InvalidDatasetError(f"{table} cannot be used. {error}") from error


def _of_frame(table: Columns, wanted: Sequence[Name]) -> Table:
    names = _names_of_frame(table)
    keys = {name: name if names is None else names[place_of(name, names)] for name in wanted}
    return Table({name: partial(_column_of_frame, table, key, name) for name, key in keys.items()})


def _names_of_frame(table: object) -> list[Any] | None:
    """Returns the names of a frame's columns; None if it does not say them."""
    # A frame of polars that is not computed yet has names, but no cells.
    usable = hasattr(table, "__getitem__") and not isinstance(table, bytes)
    usable = usable and (hasattr(table, "height") or not hasattr(table, "collect_schema"))
    names = getattr(table, "column_names", None)  # pyarrow's; its `columns` are their cells
    if names is None and usable:
        names = getattr(getattr(table, "dtype", None), "names", None)  # of structured arrays
    if names is None and usable:
        names = getattr(table, "columns", None)
    if names is None and callable(keys := getattr(table, "keys", None)):
        names = keys()
    if not usable or (names is None and hasattr(table, "__len__")):
        raise InvalidDatasetError(
            "Expected a .csv or .parquet file, a folder of them, or columns by name, such as a "
            f'data frame or {{"age": [61, 70]}}, got {shown(table)} of type '
            f"{type(table).__name__}."
        )
    return None if names is None else list(names)


def _column_of_frame(table: Columns, key: Name, name: Name) -> Column:
    try:
        column: object = table[key]
    except MemoryError:
        raise
    except Exception as error:  # any of another library
        raise InvalidDatasetError(
            f"The column {shown(key)} of this {type(table).__name__} cannot be read "
            f"({shown(error)}). Expected columns by name, such as a data frame."
        ) from error
    return as_column(column, name)


@contextmanager
def _enough_memory(what: object) -> Iterator[None]:
    """Makes lack of memory an InvalidDatasetError."""
    try:
        yield
    except Exception as error:
        if not is_lack_of_memory(error):
            raise
        raise InvalidDatasetError(
            f"Reading {what} takes more memory than the {available_memory():,} bytes that are "
            "available. Read fewer rows or columns, store numbers in small types, pass "
            "memory_map= a folder, or use a machine with more."
        ) from error
