"""Reading CSV files of users, whose faults are named by file, row and column."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LOOKED_AT = 1000  # bytes that tell UTF-16 without its mark from text


def read_csv(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the columns of a CSV file in UTF-8, as text; rows count from 0 after the header.

    Raises:
        InvalidDatasetError: another encoding, a cell of more than the `csv` module's limit of
            131,072 characters, or a row with more or fewer cells than the header.
    """
    header, *rows = _rows(path, _decoded(path)) or [[]]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise InvalidDatasetError(
                f"Row {number} of {path} has {len(row)} cells, the header has {len(header)}."
            )
    return {name: np.array([row[i] for row in rows], object) for i, name in enumerate(header)}


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
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error:
        return f"line {text.count(chr(10)) + 1}"
    return _place(rows[0], len(rows) - 1, len(rows[-1]) - 1)


def _place(header: list[str], row: int, column: int) -> str:
    """Names a cell; row 0 is the header."""
    if row == 0:
        return f"column {column} (from 0) of the header"
    name = repr(header[column]) if column < len(header) else f"{column} (from 0)"
    return f"row {row - 1}, column {name}"


def _rows(path: Path, text: str) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline="")):
            rows.append(row)  # one by one: the rows before an error are needed
    except csv.Error as error:
        cells = _row_of_any_size(text, len(rows))
        longest = max(range(len(cells)), key=lambda i: len(cells[i]))
        raise InvalidDatasetError(
            f"Expected cells of at most {csv.field_size_limit():,} characters in {path}, "
            f"{_place(rows[0] if rows else cells, len(rows), longest)} has "
            f"{len(cells[longest]):,} ({error}). If a quotation mark is not closed there, close "
            "it; otherwise remove the column, or read the file yourself and pass a data frame."
        ) from error
    return rows


def _row_of_any_size(text: str, number: int) -> list[str]:
    limit = csv.field_size_limit(len(text))
    try:
        return next(itertools.islice(csv.reader(io.StringIO(text, newline="")), number, None))
    finally:
        csv.field_size_limit(limit)
