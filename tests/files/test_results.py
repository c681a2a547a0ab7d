from __future__ import annotations

from pathlib import Path

import pytest

from spin_d3rlpy.files.results import format_table, write_csv


def test_table_aligns_names_left_and_numbers_right() -> None:
    text = format_table([{"name": "a", "value": 1}, {"name": "long", "value": 123456}])
    assert text.splitlines() == [
        "name   value",
        "----  ------",
        "a          1",
        "long  123456",
    ]


def test_csv_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert path.read_text() == "a,b\n1,x\n2,y\n"
    assert list(tmp_path.iterdir()) == [path]


class BrokenError(Exception):
    """Stands for whatever a value's text ends in."""


def test_a_failed_write_leaves_the_old_csv(tmp_path: Path) -> None:
    class Broken:
        def __str__(self) -> str:
            raise BrokenError

    path = tmp_path / "x.csv"
    write_csv(path, [{"a": 1}])
    with pytest.raises(BrokenError):
        write_csv(path, [{"a": 2}, {"a": Broken()}])
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_csv_has_all_columns_and_leaves_gaps_empty(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": 2, "b": 3}])
    assert (tmp_path / "x.csv").read_text() == "a,b\n1,\n2,3\n"
