"""Tables in files: one file, or a folder of parts, as programs write it that work on many rows.

Parts are read one after the other, in the order of their names, and a column at a time.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spin_d3rlpy.data.tables.columns import Column, Name, as_column, joined, place_of
from spin_d3rlpy.data.tables.csv_files import open_csv
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, listed, shown
from spin_envs import MissingDependencyError

T = TypeVar("T")

_FILES = (".csv", ".parquet")
_ROWS_AT_ONCE = 2**20  # of a column


def files_of(path: Path) -> list[Path]:
    """Returns a table's files: the one that is given, or a folder's, numbers in names as such.

    Files whose names begin with "." or "_", with which other programs mark what is no data, are
    not looked at.

    Raises:
        FileNotFoundError: there is no such file or folder.
        InvalidDatasetError: it is no `.csv` or `.parquet` file, or the folder has none, or both.
    """
    if path.is_dir():
        entries = [entry for entry in path.iterdir() if entry.name[0] not in "._"]
        files = sorted((e for e in entries if e.suffix.lower() in _FILES), key=_natural)
        endings = {file.suffix.lower() for file in files}
        if len(endings) != 1 or not all(file.is_file() for file in files):
            raise InvalidDatasetError(
                f"Expected a folder of .csv files or of .parquet files, got {path} with "
                f"{listed(sorted(entry.name for entry in entries))}. Files in folders within it "
                "are not read: put all parts of a log in one folder."
            )
        return files
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix.lower() not in _FILES:
        raise InvalidDatasetError(
            f"Expected a .csv or .parquet file, or a folder of them, got {path.name!r}."
        )
    return [path]


def _natural(path: Path) -> list[Any]:
    """Returns what to sort by so that part 2 is before part 10."""
    return [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", path.name)]


class Part:
    """One of a table's files.

    Args:
        path: of it.
        header: names of its columns.

    Attributes:
        rows: number of its rows.
        first: number of its first row in the table.
    """

    rows: int

    def __init__(self, path: Path, header: list[str]) -> None:
        self.path, self.header = path, header
        self.first = 0
        self.places: dict[Name, int] = {}  # of the wanted columns in the header

    def find(self, wanted: Sequence[Name]) -> None:
        """Finds the wanted columns; raises InvalidDatasetError if one is not there, or twice."""
        hint = ""
        if self.header and self.header[0].startswith("#"):
            hint = " The file's first line begins with #: remove comments in front of the header."
        self.places = {name: place_of(name, self.header, hint) for name in wanted}


class ParquetPart(Part):
    """A Parquet file, of which a column is read when it is asked for.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, [])
        self._stored = path

    def find(self, wanted: Sequence[Name]) -> None:
        """Opens the file and finds the columns; raises InvalidDatasetError if that is not so."""
        file = self._checked(partial(_parquet().ParquetFile, self._stored))
        self._schema = self._checked(lambda: file.schema_arrow)
        self.header = list(self._schema.names)
        self.rows = int(file.metadata.num_rows)
        super().find(wanted)

    def _checked(self, read: Callable[[], T]) -> T:
        import pyarrow

        try:
            return read()
        except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError) as error:
            if is_lack_of_memory(error):
                raise
            raise InvalidDatasetError(
                f"{self.path} is not a Parquet file, or damaged: {shown(error)}."
            ) from error

    def type_of(self, name: Name) -> Any:
        """Returns a column's type; of dictionaries that of their values."""
        from pyarrow import types

        kind = self._schema.types[self.places[name]]
        return kind.value_type if types.is_dictionary(kind) else kind

    def pieces(self, name: Name) -> Iterator[Any]:
        """Yields the column as arrays of some rows each."""
        stored = self.header[self.places[name]]
        with self._checked(partial(_parquet().ParquetFile, self._stored)) as file:
            batches = file.iter_batches(_ROWS_AT_ONCE, columns=[stored], use_threads=False)
            while (batch := self._checked(partial(next, batches, None))) is not None:
                yield batch.column(0)


class CsvPart(Part):
    """A CSV file, whose wanted columns are read as text when it is opened."""

    def __init__(self, path: Path, wanted: Sequence[Name]) -> None:
        names = {str(name).strip() for name in wanted}
        header, self._read = open_csv(path, lambda name: name.strip() in names)
        super().__init__(path, header)

    def find(self, wanted: Sequence[Name]) -> None:
        super().find(wanted)
        self.rows = len(self._read(self.places[wanted[0]]))

    def column(self, name: Name) -> Any:
        """Returns a column's text."""
        return self._read(self.places[name])


class Parts:
    """All files of a table, as one.

    Args:
        path: of the file or folder.
        parts: of it, in order.
        wanted: names of the columns that will be asked for.

    Attributes:
        is_folder: whether the path is that of a folder.
        rows: number of the table's rows.

    Raises:
        InvalidDatasetError: a part lacks a column, or has its name twice.
    """

    def __init__(self, path: Path, parts: Sequence[Part], wanted: Sequence[Name]) -> None:
        self._parts, self.is_folder = parts, path.is_dir()
        self.rows = 0
        for part in parts:
            part.first = self.rows
            self._naming(part, partial(part.find, wanted))
            self.rows += part.rows

    def _naming(self, part: Part, work: Callable[[], T]) -> T:
        """Returns what work on a part returns; its errors name the part."""
        try:
            return work()
        except InvalidDatasetError as error:
            if not self.is_folder:
                raise
            raise InvalidDatasetError(
                f"In {part.path.name}, which begins with row {part.first} of the whole: {error}"
            ) from error

    def located(self, error: InvalidRowError) -> InvalidDatasetError:
        """Returns an error with the file and the file's row in place of the table's row."""
        part = next(p for p in reversed(self._parts) if p.first <= error.row and p.rows)
        return error.in_part(part.path.name, error.row - part.first)

    def column(self, name: Name) -> Column:
        """Returns a column of all parts.

        Raises:
            InvalidDatasetError: a file is damaged, the column's type cannot be read, or is another
                one in another part.
        """
        return joined(self._pieces(name), self.rows)

    def _pieces(self, name: Name) -> Iterator[Column]:
        raw = self._raw_of_csv(name) if isinstance(self._parts[0], CsvPart) else self._raw(name)
        for part, piece in raw:
            yield self._naming(part, partial(as_column, piece, name))

    def _raw_of_csv(self, name: Name) -> Iterator[tuple[Part, Any]]:
        texts = [(part, part.column(name)) for part in self._parts if isinstance(part, CsvPart)]
        if any(isinstance(text, np.ndarray) for _, text in texts):  # two readers were needed
            texts = [(part, _as_objects(text)) for part, text in texts]
        return iter(texts)

    def _raw(self, name: Name) -> Iterator[tuple[Part, Any]]:
        parts = [part for part in self._parts if isinstance(part, ParquetPart)]
        kind = self._common_type(name, parts)
        for part in parts:
            pieces, row = part.pieces(name), 0
            while (piece := self._naming(part, partial(next, pieces, None))) is not None:
                yield part, self._cast(part, name, piece, kind, row)
                row += len(piece)

    def _common_type(self, name: Name, parts: Sequence[ParquetPart]) -> Any:
        """Returns the type that holds all parts' values, e.g. where one has no fractions."""
        import pyarrow

        types = [part.type_of(name) for part in parts]
        first = types[0]
        common = first
        for part, kind in zip(parts, types, strict=True):
            try:
                both = [pyarrow.schema([("x", t)]) for t in (common, kind)]
                common = pyarrow.unify_schemas(both, promote_options="permissive").field(0).type
            except pyarrow.ArrowException as error:
                raise InvalidDatasetError(
                    f"Expected column {shown(name)} to have one type, got {first} in "
                    f"{parts[0].path.name} and {kind} in {part.path.name}. Write all files alike."
                ) from error
        return common

    def _cast(self, part: Part, name: Name, piece: Any, kind: Any, row: int) -> Any:
        import pyarrow
        from pyarrow import types

        if piece.type == kind or types.is_dictionary(piece.type):
            return piece
        try:
            return piece.cast(kind)
        except pyarrow.ArrowException as error:
            raise InvalidDatasetError(
                f"In {part.path.name}, column {shown(name)} from row {row} on cannot be read as "
                f"{kind}, which other files have ({shown(error)}). Write all files alike."
            ) from error


def _as_objects(text: Any) -> Any:
    return text if isinstance(text, np.ndarray) else np.array(text.to_pylist(), object)


def open_files(path: Path, wanted: Sequence[Name]) -> Parts:
    """Opens a table's files.

    Args:
        path: of the file or folder.
        wanted: names of the columns that will be asked for.

    Raises:
        FileNotFoundError: there is no such file or folder.
        InvalidDatasetError: it is none, or damaged, or lacks a column.
        MissingDependencyError: a Parquet file without pyarrow.
    """
    files = files_of(path)
    if files[0].suffix.lower() == ".parquet":
        return Parts(path, [ParquetPart(file) for file in files], wanted)
    return Parts(path, [CsvPart(file, wanted) for file in files], wanted)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Reading Parquet files needs pyarrow: pip install 'spin-d3rlpy[parquet]'."
        ) from error
    return parquet


def is_lack_of_memory(error: Exception) -> bool:
    """Returns whether an error, also one of the system or of pyarrow, is for want of memory."""
    lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    return lacks or "Failed to launch worker thread" in str(error)
