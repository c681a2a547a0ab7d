"""Reading CSV files of users, whose faults are named by file, row and column.

A file is read by pyarrow where that is installed and the file has nothing in which two readers
could differ, otherwise by Python's `csv`. Both return text, to be judged by whole columns.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import itertools
import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError, shown

if TYPE_CHECKING:
    import pyarrow

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 1000  # bytes that tell UTF-16 without its mark from text
_DELIMITERS = (",", ";", "\t")
_ROWS_AT_ONCE = 1000  # of the part of a file whose cells are separate strings
_BETWEEN = "\x1f"
_BLOCK = 2**22  # bytes
_SAID = re.compile(r"sep=(.)")  # the first line of some spreadsheets' files


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a file is written: what parts its cells, and how many lines stand before its rows."""

    delimiter: str
    skipped: int  # lines before the header
    header: list[str]


def open_csv(
    path: Path, is_wanted: Callable[[str], bool]
) -> tuple[list[str], Callable[[int], Any]]:
    """Returns the names of a CSV file's columns, and what returns the text of a wanted one.

    Cells are parted by commas or, if the header has none, by semicolons or tabs. Empty lines are
    skipped. Rows count from 0 after the header.

    Raises:
        InvalidDatasetError: another encoding than UTF-8, a cell of more than the `csv` module's
            limit of 131,072 characters, or a row with more or fewer cells than the header.
    """
    form = _form_of(path)
    if form is not None:
        columns = _read_by_arrow(path, form, is_wanted)
        if columns is not None:
            return form.header, columns.__getitem__
    return _read_by_python(path, is_wanted)


def _form_of(path: Path) -> _Form | None:
    """Returns how a plain file is written; None if it is not plain."""
    with path.open("rb") as file:
        lines = [file.readline().removeprefix(_BOM)]
        while not lines[-1].strip() and len(lines) < 100:
            lines.append(file.readline())
        try:
            text = lines[-1].decode()
        except UnicodeDecodeError:
            return None
        if text.count('"') % 2 or "\0" in text or _SAID.match(text) or not text.strip():
            return None
    return _Form(delimiter_of(text), len(lines) - 1, _names(text, delimiter_of(text)))


def delimiter_of(header: str) -> str:
    """Returns what parts the names in a header."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return next((mark for mark in _DELIMITERS if mark in unquoted), ",")


def _names(header: str, delimiter: str) -> list[str]:
    reader = csv.reader(io.StringIO(header, newline=""), delimiter=delimiter, skipinitialspace=True)
    return [name.strip() for name in next(reader, [])]


def _read_by_arrow(
    path: Path, form: _Form, is_wanted: Callable[[str], bool]
) -> dict[int, Any] | None:
    """Returns the wanted columns' text, by number; None if Python's reader is to be asked."""
    try:
        import pyarrow
    except ImportError:
        return None
    wanted = [i for i, name in enumerate(form.header) if is_wanted(name)]
    try:
        table = pyarrow.Table.from_batches(list(_batches(path, form, wanted)))
    except NotPlainError:  # Python's reader names row and column
        return None
    return {i: table.column(place) for place, i in enumerate(wanted)}


class NotPlainError(Exception):
    """A file has something in which two readers could differ, or is damaged."""


Find = Callable[[list[str]], list[int]]


def plain_batches(path: Path, find: Find) -> Iterator[dict[str, Any]]:
    """Yields the text of a plain CSV file's wanted columns by name, some rows at a time.

    Args:
        path: of the file.
        find: returns the numbers of the wanted columns, given the header.

    Raises:
        NotPlainError: `whole_batch` is to be asked; also in the middle of the file.
    """
    form = _form_of(path)
    if form is None:
        raise NotPlainError
    wanted = find(form.header)
    for batch in _batches(path, form, wanted):
        yield {form.header[i]: batch.column(place) for place, i in enumerate(wanted)}


def whole_batch(path: Path, find: Find) -> Iterator[dict[str, Any]]:
    """Yields the same of any CSV file, at once.

    Raises:
        InvalidDatasetError: as of `open_csv`.
    """
    import pyarrow

    header, read = _read_by_python(path, lambda name: True)
    texts = {header[i]: read(i) for i in find(header)}
    yield {name: pyarrow.array(text, pyarrow.large_string()) for name, text in texts.items()}


def _batches(path: Path, form: _Form, wanted: list[int]) -> Iterator[pyarrow.RecordBatch]:
    """Yields the text of the columns with these numbers; raises NotPlainError."""
    import pyarrow
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    quotes = _plain_quotes(path, form.delimiter)
    if quotes is None:
        raise NotPlainError
    labels = [str(i) for i in range(len(form.header))]
    try:
        batches = arrow_csv.open_csv(
            path,
            # Where memory is short, threads end the process instead of an error.
            arrow_csv.ReadOptions(
                column_names=labels,
                skip_rows=form.skipped + 1,
                use_threads=False,
                block_size=_BLOCK,
            ),
            arrow_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=quotes),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(labels, pyarrow.large_string()),
                include_columns=[labels[i] for i in wanted] or labels[:1],
                strings_can_be_null=False,
            ),
        )
        batch = None
        for batch in batches:
            lengths = (compute.max(compute.utf8_length(c)).as_py() or 0 for c in batch.columns)
            if max(lengths) > csv.field_size_limit():
                raise NotPlainError
            yield batch
        if batch is None:
            raise NotPlainError
    except pyarrow.ArrowInvalid as error:
        raise NotPlainError from error


def _plain_quotes(path: Path, delimiter: str) -> bool | None:
    """Returns whether a file has quotation marks; None if some stand inside of cells.

    None, too, if it is not UTF-8.
    """
    if not path.stat().st_size:
        return False
    parts = re.escape(delimiter.encode()) + rb'\r\n"'
    inside = re.compile(rb'"(?<![' + parts + rb']")(?![' + parts + rb"])")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"\0") >= 0 or inside.search(content, 1) or not _is_utf_8(content):
            return None
        return content.find(b'"') >= 0


def _is_utf_8(content: mmap.mmap) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(content), _BLOCK):
            decoder.decode(content[start : start + _BLOCK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _read_by_python(
    path: Path, is_wanted: Callable[[str], bool]
) -> tuple[list[str], Callable[[int], Any]]:
    text = _decoded(path)
    first_line = _SAID.match(text)
    first = 1 if first_line else 0
    lines = itertools.islice(io.StringIO(text, newline=None), first, None)
    delimiter = (
        first_line[1] if first_line else delimiter_of(next((x for x in lines if x.strip()), ""))
    )
    rows = itertools.islice(_rows(path, text, delimiter), first, None)
    header = [name.strip() for name in next(rows, [])]
    columns = {i: _Texts() for i, name in enumerate(header) if is_wanted(name)}
    shift, ends_empty, number = 0, True, 0
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        if number == 0 and len(some[0]) == len(header) + 1:
            shift = 1  # names of rows, which R writes without a name of their own
        for i, row in enumerate(some):
            if len(row) != len(header) + shift:
                raise _wrong_length(path, number + i, row, header)
        number += len(some)
        cells = list(zip(*some, strict=True))
        ends_empty = ends_empty and not any(map(str.strip, cells[-1]))
        for i, column in columns.items():
            column.add(cells[i + shift])
    if shift and ends_empty:  # or every row ends with a delimiter
        raise _wrong_length(path, 0, [""] * (len(header) + 1), header)
    return header, lambda i: columns[i].array()


class _Texts:
    """A column's text, joined: a string for each cell takes several times its memory."""

    def __init__(self) -> None:
        self._parts: list[str | tuple[str, ...]] = []

    def add(self, cells: tuple[str, ...]) -> None:
        """Adds cells of the next rows."""
        joined = _BETWEEN.join(cells)
        is_plain = joined.count(_BETWEEN) == len(cells) - 1
        self._parts.append(joined if is_plain else cells)

    def array(self) -> NDArray[np.object_]:
        """Returns the cells."""
        parts = (p.split(_BETWEEN) if isinstance(p, str) else p for p in self._parts)
        cells = [cell for part in parts for cell in part]
        return np.fromiter(cells, object, len(cells))


def _wrong_length(
    path: Path, number: int, row: list[str], header: list[str]
) -> InvalidDatasetError:
    hint = ""
    if row[0].lstrip().startswith("#"):
        hint = " It begins with #: remove comments from the file."
    elif header[0].startswith("#"):
        hint = " The first line begins with #: remove comments in front of the header."
    return InvalidDatasetError(
        f"Row {number} of {path} has {len(row)} cells, the header has {len(header)}.{hint}"
    )


def _decoded(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith(_UTF_16) or b"\0" in content[:_LOOKED_AT]:
        raise _encoding_error(f"Expected {path} in UTF-8, it looks like UTF-16", path, "utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        until = content[: error.start + 1].decode("latin-1")
        raise _encoding_error(
            f"Expected {path} in UTF-8, {_last_place(until)} has the byte "
            f"0x{content[error.start]:02X}, as in Latin-1 or another encoding",
            path,
            "latin-1",
        ) from error


def _encoding_error(complaint: str, path: Path, encoding: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        f"{complaint}. Save it as UTF-8 (spreadsheets call this CSV UTF-8), or pass a data frame, "
        f"such as pandas.read_csv({path.name!r}, encoding={encoding!r})."
    )


def _last_place(text: str) -> str:
    """Names the row and column in which a piece of a file ends."""
    try:
        rows = [row for row in _reader(text, delimiter_of(text.partition("\n")[0])) if row]
    except csv.Error:
        return f"line {text.count(chr(10)) + 1}"
    return _place(rows[0], len(rows) - 1, len(rows[-1]) - 1)


def _place(header: list[str], row: int, column: int) -> str:
    """Names a cell; row 0 is the header."""
    if row == 0:
        return f"column {column} (from 0) of the header"
    name = shown(header[column]) if column < len(header) else f"{column} (from 0)"
    return f"row {row - 1}, column {name}"


def _reader(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)


def _rows(path: Path, text: str, delimiter: str) -> Iterator[list[str]]:
    """Yields the rows of cells, empty lines left out."""
    read = yielded = 0
    header: list[str] = []
    try:
        for row in _reader(text, delimiter):
            read += 1
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            header = header or row
            yielded += 1
            yield row
    except csv.Error as error:
        cells = _row_of_any_size(text, read, delimiter)
        longest = max(range(len(cells)), key=lambda i: len(cells[i]))
        raise InvalidDatasetError(
            f"Expected cells of at most {csv.field_size_limit():,} characters in {path}, "
            f"{_place(header or cells, yielded, longest)} has "
            f"{len(cells[longest]):,} ({error}). If a quotation mark is not closed there, close "
            "it; otherwise remove the column, or read the file yourself and pass a data frame."
        ) from error


def _row_of_any_size(text: str, number: int, delimiter: str) -> list[str]:
    limit = csv.field_size_limit(len(text))
    try:
        return next(itertools.islice(_reader(text, delimiter), number, None))
    finally:
        csv.field_size_limit(limit)
