"""CSV files that are larger than memory, as Parquet files, of which columns can be read.

Text is written as text. A column that is to be numbers is written as numbers while it holds nothing
else; at the first other cell the files are written again, with this column as text, because all
cells together decide what a column is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spin_d3rlpy.data.tables.cells import text_as_numbers
from spin_d3rlpy.data.tables.columns import EXACT, Name
from spin_d3rlpy.data.tables.csv_files import NotPlainError, plain_batches, whole_batch
from spin_d3rlpy.data.tables.parts import ParquetPart, Part, Parts, files_of, open_files
from spin_d3rlpy.files.atomic import write_errors
from spin_d3rlpy.training.progress import progress_bar
from spin_envs import MissingDependencyError

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 2**17  # that are written together


class _NotNumbersError(Exception):
    """A column holds something else than numbers that float64 has exactly."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class CsvAsParquet(ParquetPart):
    """A CSV file, whose wanted columns are written to a Parquet file and read from there.

    Args:
        path: of the CSV file.
        numbers: names of columns that are written as numbers.
        folder: for the Parquet file; it must outlive the table.
    """

    def __init__(self, path: Path, numbers: Collection[str], folder: Path) -> None:
        super().__init__(path)
        self._numbers = numbers
        self._stored = folder / f"{path.name}.parquet"

    def find(self, wanted: Sequence[Name]) -> None:
        """Writes the Parquet file.

        Raises:
            InvalidDatasetError: a column is missing, or a row of another length than the header.
            FileWriteError: the folder has no room.
            _NotNumbersError: a column that is written as numbers holds something else.
        """

        def places(header: list[str]) -> list[int]:
            part = Part(self.path, header)
            part.find(wanted)
            return sorted(set(part.places.values()))

        with write_errors(self._stored):
            try:
                self._write(plain_batches(self.path, places))
            except NotPlainError:
                self._write(whole_batch(self.path, places))
        super().find(wanted)

    def _write(self, batches: Iterator[dict[str, Any]]) -> None:
        from pyarrow import parquet

        writer = None
        try:
            with progress_bar(f"Reading {self.path.name}", "rows") as bar:
                for table in _collected(map(self._typed, batches)):
                    if writer is None:
                        texts = [name for name in table.column_names if name not in self._numbers]
                        writer = parquet.ParquetWriter(
                            self._stored, table.schema, use_dictionary=texts
                        )
                    writer.write_table(table)
                    bar.update(len(table))
        finally:
            if writer is not None:
                writer.close()

    def _typed(self, batch: dict[str, Any]) -> pyarrow.Table:
        """Returns text as numbers where it is to be."""
        import pyarrow

        columns = dict(batch)
        for name in self._numbers & columns.keys():
            numbers = text_as_numbers(pyarrow.chunked_array([columns[name]]))
            if numbers is None or np.nanmax(np.abs(numbers), initial=0.0) >= EXACT:
                raise _NotNumbersError(name)
            columns[name] = pyarrow.array(numbers, mask=np.isnan(numbers))
        return pyarrow.table(columns)


def _collected(tables: Iterator[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    """Yields tables of many rows: a Parquet file of many small groups of rows is slow to open."""
    import pyarrow

    some: list[pyarrow.Table] = []
    for table in tables:
        some.append(table)
        if sum(map(len, some)) >= _ROWS_AT_ONCE:
            yield pyarrow.concat_tables(some)
            some = []
    if some:
        yield pyarrow.concat_tables(some)


def open_as_parquet(
    path: Path, wanted: Sequence[Name], numbers: Collection[Name], folder: Path
) -> Parts:
    """Opens a table's files, CSV files as Parquet files that are written first.

    Args:
        path: of the file or folder.
        wanted: names of the columns that will be asked for.
        numbers: those of them that may be written as numbers.
        folder: for the Parquet files; it must outlive the table.

    Raises:
        FileNotFoundError: there is no such file or folder.
        InvalidDatasetError: as of `open_files`.
        FileWriteError: the folder has no room.
        MissingDependencyError: pyarrow is not installed.
    """
    files = files_of(path)
    if files[0].suffix.lower() == ".parquet":
        return open_files(path, wanted)
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Reading CSV files with memory_map= needs pyarrow: pip install 'spin-d3rlpy[parquet]'."
        ) from error
    as_numbers = {str(name).strip() for name in numbers}
    while True:
        try:
            return Parts(path, [CsvAsParquet(f, as_numbers, folder) for f in files], wanted)
        except _NotNumbersError as error:
            as_numbers -= {error.name}
