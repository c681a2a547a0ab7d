"""Faulty files of users: errors that name file, row and column, and what to do."""

from __future__ import annotations

import csv
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from spin_d3rlpy import from_table
from spin_d3rlpy.data.tables import csv_files
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


BOTH = pytest.mark.parametrize("with_pyarrow", [True, False])
SMALL: dict[str, Any] = {
    "observations": ["s"],
    "actions": ["a"],
    "reward": "r",
    "episode": "e",
    "nvec": [2],
}
HEAD, CELLS = "e,s,a,r\n", "1,1.5,0,1\n1,2.5,1,2\n2,3.5,0,3\n"


def read(content: str | bytes, folder: Path, name: str = "log.csv", **reading: Any) -> Any:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return from_table(path, **SMALL | reading)


@pytest.fixture
def reader(with_pyarrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_pyarrow:
        monkeypatch.setattr(csv_files, "_read_by_arrow", lambda *_: None)


@BOTH
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    "content",
    [
        HEAD + CELLS,
        (HEAD + CELLS).replace(",", ";"),
        (HEAD + CELLS).replace(",", "\t"),
        (HEAD + CELLS).replace(",", ", "),
        (HEAD + CELLS).replace("\n", "\r\n"),
        (HEAD + CELLS).replace("\n", "\r"),
        "\n\n" + HEAD + "\n" + CELLS.replace("\n", "\n\n  \n"),
        "sep=;\n" + (HEAD + CELLS).replace(",", ";"),
        "\ufeff" + HEAD + CELLS,
        '\ufeff"e","s","a","r"\n' + CELLS,
        '"","e","s","a","r"\n' + "".join(f'"{i}",{x}\n' for i, x in enumerate(CELLS.split())),
        '"e","s","a","r"\n' + "".join(f'"{i}",{x}\n' for i, x in enumerate(CELLS.split())),
        'e,s,a,r\n"x, ""y""\n",1.5,0,1\n"x, ""y""\n",2.5,1,2\nz,3.5,0,3\n',
        'e,s,a,r\n5" pipe,1.5,0,1\n5" pipe,2.5,1,2\nz,3.5,0,3\n',
        'e,s,a,r,n\n1,"1.5",0,1,x\n1,"2.5",1,2,\n2,+3.5,0,3,y\n',
    ],
)
@pytest.mark.parametrize("name", ["log.csv", "LOG.CSV"])
def test_files_of_other_programs_are_read(content: str, name: str, tmp_path: Path) -> None:
    log = read(content, tmp_path, name)
    assert log.observations[:, 0].tolist() == [1.5, 2.5, 2.5, 3.5, 3.5]
    assert log.episode_starts.tolist() == [0, 2, 3]


@BOTH
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# by me\n" + HEAD + CELLS, "first line begins with #"),
        ("#" + HEAD + CELLS, "no column 'e'.* first line begins with #"),
        (HEAD + "# half\n" + CELLS, "It begins with #: remove comments"),
        (HEAD + CELLS.replace("\n", ",\n"), "Row 0 of .* has 5 cells, the header has 4"),
        ("e,s,s,a,r\n1,1,2,0,1\n", "There are 2 columns 's'"),
        ("", "no column 's'; columns: none"),
        (HEAD, "has no rows"),
        (HEAD + ",1.5,0,1\n,2.5,1,2\n", "Row 0 has no 'e'"),
        (HEAD + "1,NA,0,1\n1,2.5,1,2\n", r"Row 0 has no 's' \(its cell is 'NA'\)"),
        (HEAD + "1,1_0,0,1\n1,2.5,1,2\n", "looks like a number"),
        (HEAD + "1,010,0,1\n1,2.5,1,2\n", "'010', with a zero in front"),
        (HEAD + "1,Nan,0,1\n1,2.5,1,2\n", "row 0 has 'Nan'"),
        (HEAD + "1,inf,0,1\n1,2.5,1,2\n", "which is not finite"),
        (HEAD + "1,1e999,0,1\n1,2.5,1,2\n", "which is not finite"),
        ("e;s;a;r\n1;1,5;0;1\n1;2,5;1;2\n", r"Pass decimal=\{'s': ','\}"),
        (HEAD.encode() + b"1,2,0,1\n\xfc,1,0,1\n", "row 1, column 'e' has the byte 0xFC"),
        (b"n," + HEAD.encode() + b"\xfc,1,2,0,1\n", "row 0, column 'n' has the byte 0xFC"),
    ],
)
def test_faults_of_files_are_the_same_with_and_without_pyarrow(
    content: str | bytes, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDatasetError, match=expected):
        read(content, tmp_path)


@BOTH
@pytest.mark.usefixtures("reader")
def test_text_of_a_file_is_compared_as_text(tmp_path: Path) -> None:
    big = "9007199254740993,1,007,1\n9007199254740992,2,7,2\n"
    log = read(HEAD + big, tmp_path, nvec=None, choices={"a": ["7", "007"]})
    assert (log.size(), log.actions[:, 0].tolist()) == (2, [1, 0])


@BOTH
@pytest.mark.usefixtures("reader")
def test_public_tables_of_r_load_or_are_named(tmp_path: Path) -> None:
    # Row names, factors, dots in names, NA, quoted numbers, a factor's empty level.
    head = '"","id","stab.glu","frame","bp.1s","gender","dv","dose"\n'
    rows = '"1",1,82,"medium",118,"female",".","1"\n"2",1,97,"",NA,"female","9.1","2"\n'
    rows += '"3",2,92,"large",190,"male","6.7","1"\n'
    (tmp_path / "diabetes.csv").write_text(head + rows)
    reading: dict[str, Any] = {
        "observations": ["stab.glu", "frame", "bp.1s", "gender", "dv"],
        "actions": ["dose"],
        "choices": {"dose": [1, 2]},
        "reward": "stab.glu",
        "episode": "id",
    }
    with pytest.raises(InvalidDatasetError, match=r"'stab\.glu' is the reward"):
        from_table(tmp_path / "diabetes.csv", **reading)
    reading["observations"] = reading["observations"][1:]
    with pytest.raises(InvalidDatasetError, match=r"Row 1 has no 'frame'\. Pass missing='mean'"):
        from_table(tmp_path / "diabetes.csv", **reading)
    log = from_table(tmp_path / "diabetes.csv", missing="mean", **reading)
    assert log.preparation is not None
    assert log.preparation.features == [
        *("frame=large", "frame=medium", "frame is missing"),
        *("bp.1s", "bp.1s is missing"),
        *("gender=female", "gender=male", "dv", "dv is missing"),
    ]
    (tmp_path / "warfarin.csv").write_text(
        "id,time,dv,dvid,sex\n100,0,.,cp,male\n100,0.5,100,pca,male\n100,NA,4,2,male\n"
    )
    reading = {"actions": ["sex"], "choices": {"sex": ["male", "female"]}, "reward": "dv"}
    with pytest.raises(InvalidDatasetError, match="Row 0 has no 'dv'"):
        from_table(tmp_path / "warfarin.csv", observations=["time"], episode="id", **reading)
    with pytest.raises(InvalidDatasetError, match="Row 2 has no 'time', by which to order"):
        from_table(
            tmp_path / "warfarin.csv", observations=["dvid"], episode="id", time="time", **reading
        )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_lack_of_memory_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"log.{kind}"
    path.write_text(HEAD + CELLS)
    if kind == "parquet":
        columns = {"e": [1, 1], "s": [1.0, 2.0], "a": [0, 1], "r": [1.0, 2.0]}
        parquet.write_table(pyarrow.table(columns), path)
    monkeypatch.setattr("spin_d3rlpy.files.untrusted.available_memory", lambda: 10)
    with pytest.raises(InvalidDatasetError, match=r"1 features would take .* of which 10"):
        from_table(path, **SMALL)
    for error in (pyarrow.ArrowMemoryError("malloc"), OSError(errno.ENOMEM, "no memory")):

        def fails(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("pyarrow.csv.open_csv", fails)
        monkeypatch.setattr(parquet, "ParquetFile", fails)
        with pytest.raises(InvalidDatasetError, match=f"Reading {path} takes more memory than"):
            from_table(path, **SMALL)
