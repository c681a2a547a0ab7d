"""Faulty files of users: errors that name file, row and column, and what to do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spin_d3rlpy import from_table
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError

HEADER = "patient,pulse,drug,reward,status,note"
ROWS = ["a,60,none,1.0,alive,", "a,61,x,2.0,dead,", "b,70,x,3.0,alive,"]
READING: dict[str, Any] = {
    "observations": ["pulse"],
    "actions": ["drug"],
    "reward": "reward",
    "episode": "patient",
    "choices": {"drug": ["none", "x"]},
}


def write(folder: Path, rows: list[str], encoding: str = "utf-8") -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join([HEADER, *rows]), encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_read(encoding: str, tmp_path: Path) -> None:
    rows = [*ROWS, "b,70,x,3.0,alive,Müller"]
    assert from_table(write(tmp_path, rows, encoding), **READING).transition_count == 4


def test_latin_1_is_named_with_row_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, [*ROWS, "b,71,x,3.0,alive,Müller"], "latin-1")
    expected = rf"{path} in UTF-8, row 3, column 'note' has the byte 0xFC.*Save it as UTF-8.*latin"
    with pytest.raises(InvalidDatasetError, match=expected):
        from_table(path, **READING)
    path.write_bytes(b"patient,p\xfcls\n")
    with pytest.raises(
        InvalidDatasetError, match=r"column 1 \(from 0\) of the header has the byte"
    ):
        from_table(path, **READING)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS, encoding)
    with pytest.raises(InvalidDatasetError, match=rf"{path} in UTF-8, it looks like UTF-16\. Save"):
        from_table(path, **READING)


def test_long_cells_are_named_with_row_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS[0], "a,61,x,2.0,dead" + "n" * 140_000 + ",", *ROWS[2:]])
    before = csv.field_size_limit()
    expected = (
        rf"at most 131,072 .* in {path}, row 1, column 'status' has 140,004 .*remove the column"
    )
    with pytest.raises(InvalidDatasetError, match=expected):
        from_table(path, **READING, terminal="status")
    assert csv.field_size_limit() == before
    path = write(tmp_path, [ROWS[0], 'a,61,"x,2.0,dead,', *ROWS[2:] * 9_000])
    with pytest.raises(InvalidDatasetError, match=r"row 1, column 'drug' has .*not closed there"):
        from_table(path, **READING)


def test_words_as_ends_say_what_is_expected(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    expected = rf"{path} cannot.*Row 0 has 'status' = 'alive'.*1 where .*terminal_values=\['dead'\]"
    with pytest.raises(InvalidDatasetError, match=expected):
        from_table(path, terminal="status", **READING)


def test_errors_about_cells_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, [*ROWS, "b,high,x,3.0,alive,"])
    with pytest.raises(InvalidDatasetError, match=rf"{path} cannot be used.*row 3 has 'high'"):
        from_table(path, **READING)
    table = {"p": [0, 0], "s": [1, "high"], "a": [0, 0], "r": [1.0, 1.0]}
    columns: dict[str, Any] = {"observations": ["s"], "actions": ["a"], "reward": "r"}
    with pytest.raises(InvalidDatasetError, match=r"^Expected column 's' to hold numbers"):
        from_table(table, episode="p", nvec=[2], **columns)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([4, 4], r"choices= to map columns .* got \[4, 4\]\. .* as nvec= instead"),
        ([], r"choices= to map columns"),
        ({"drug": 4}, r"choices of 'drug' to be a list .* got 4"),
        ({"drug": "none"}, r"choices of 'drug' to be a list .* got 'none'"),
    ],
)
def test_choices_map_columns_to_values(choices: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(NvecMismatchError, match=expected):
        from_table(write(tmp_path, ROWS), **{**READING, "choices": choices})


def test_choices_may_be_an_array(tmp_path: Path) -> None:
    reading = {**READING, "choices": {"drug": np.array(["none", "x"])}}
    assert from_table(write(tmp_path, ROWS), **reading).nvec == [2]
