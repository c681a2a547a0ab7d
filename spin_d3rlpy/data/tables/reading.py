"""Tables of users: CSV and Parquet files and data frames, as columns by name."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from spin_d3rlpy.data.tables.columns import Column, Name, as_column
from spin_d3rlpy.data.tables.csv_files import open_csv
from spin_d3rlpy.errors import InvalidDatasetError, listed, shown
from spin_d3rlpy.files.untrusted import available_memory
from spin_envs import MissingDependencyError

_FILES = (".csv", ".parquet")


class Columns(Protocol):
    """Columns by name: a mapping of arrays, a pandas, polars or pyarrow table."""

    def __getitem__(self, name: Any, /) -> Any: ...


class Table(Mapping[Name, Column]):
    """Wanted columns, each read when it is asked for and not kept.

    Args:
        columns: how to read each, by the name that was asked for.
    """

    def __init__(self, columns: Mapping[Name, Callable[[], Any]]) -> None:
        self._columns = columns
        self._rows: tuple[int, Name] | None = None

    def __getitem__(self, name: Name) -> Column:
        """Returns a column.

        Raises:
            InvalidDatasetError: its type cannot be read, or it has not as many rows as others.
        """
        column = as_column(self._columns[name](), name)
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


def open_table(table: str | Path | Columns, wanted: Sequence[Name]) -> Table:
    """Finds the wanted columns of a table.

    Args:
        table: a file or columns by name.
        wanted: names; one that is not there may also stand for the only one that is written so,
            such as 0 for "0" in a file.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidDatasetError: a column is missing or its name is there twice, or this is no table.
        MissingDependencyError: a Parquet file without pyarrow.
    """
    if isinstance(table, str | Path):
        header, read = _open(Path(table), wanted)
        return Table({name: partial(read, _place(name, header, True)) for name in wanted})
    names = _names_of_frame(table)
    if names is None:
        return Table({name: partial(_column_of_frame, table, name) for name in wanted})
    keys = {name: names[_place(name, names, False)] for name in wanted}
    return Table({name: partial(_column_of_frame, table, key) for name, key in keys.items()})


def _place(name: Name, names: Sequence[Any], is_file: bool) -> int:
    """Returns the number of the column of this name."""
    exact = [i for i, known in enumerate(names) if type(known) is type(name) and known == name]
    exact = exact or [i for i, known in enumerate(names) if _same(known, name)]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise InvalidDatasetError(
            f"There are {len(exact)} columns {shown(name)}. Give each a name of its own."
        )
    hint = ""
    if is_file and names and str(names[0]).startswith("#"):
        hint = " The file's first line begins with #: remove comments in front of the header."
    raise InvalidDatasetError(f"There is no column {shown(name)}; columns: {listed(names)}.{hint}")


def _same(known: object, name: Name) -> bool:
    return str(known).strip() == str(name).strip()


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
            "Expected a .csv or .parquet file or columns by name, such as a data frame or "
            f'{{"age": [61, 70]}}, got {shown(table)} of type {type(table).__name__}.'
        )
    return None if names is None else list(names)


def _column_of_frame(table: Columns, key: Name) -> object:
    try:
        column: object = table[key]
    except MemoryError:
        raise
    except Exception as error:  # any of another library
        raise InvalidDatasetError(
            f"The column {shown(key)} of this {type(table).__name__} cannot be read "
            f"({shown(error)}). Expected columns by name, such as a data frame."
        ) from error
    return column


def _open(path: Path, wanted: Sequence[Name]) -> tuple[list[str], Callable[[int], Any]]:
    """Returns a file's names of columns, and what reads one by its number."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    suffix = path.suffix.lower()
    if suffix not in _FILES:
        raise InvalidDatasetError(f"Expected a .csv or .parquet file, got {path.name!r}.")
    if suffix == ".parquet":
        return _open_parquet(path)
    names = {str(name).strip() for name in wanted}
    return open_csv(path, lambda name: name.strip() in names)


def _open_parquet(path: Path) -> tuple[list[str], Callable[[int], Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Reading Parquet files needs pyarrow: pip install 'spin-d3rlpy[parquet]'."
        ) from error

    def checked(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError) as error:
            if _is_lack_of_memory(error):
                raise
            raise InvalidDatasetError(
                f"{path} is not a Parquet file, or damaged: {shown(error)}."
            ) from error

    file = checked(lambda: parquet.ParquetFile(path))
    names = checked(lambda: list(file.schema_arrow.names))

    def read(place: int) -> Any:
        read = partial(file.read, columns=[names[place]], use_threads=False)
        return checked(read).column(0)

    return names, read


@contextmanager
def reading(table: object) -> Iterator[None]:
    """Adds a file's name to errors about its content; lack of memory is an InvalidDatasetError."""
    try:
        yield
    except InvalidDatasetError as error:
        if not isinstance(table, str | Path):
            raise
        raise InvalidDatasetError(f"{table} cannot be used. {error}") from error
    except Exception as error:
        if not _is_lack_of_memory(error):
            raise
        what = table if isinstance(table, str | Path) else "the table"
        raise InvalidDatasetError(
            f"Reading {what} takes more memory than the {available_memory():,} bytes that are "
            "available. Read fewer rows or columns, store numbers in small types, or use a "
            "machine with more."
        ) from error


def _is_lack_of_memory(error: Exception) -> bool:
    """Returns whether an error, also one of the system or of pyarrow, is for want of memory."""
    lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    return lacks or "Failed to launch worker thread" in str(error)
