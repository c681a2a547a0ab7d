"""A log in many files is one log, and one that is mapped is the same as one in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from spin_d3rlpy import DeviceReplayBuffer, from_table
from spin_d3rlpy.data.tables import csv_files, csv_parquet, mapped_log, parts
from spin_d3rlpy.errors import InvalidDatasetError

READING: dict[str, Any] = {
    "observations": ["pulse", "ward", "seen", "smoker", "seconds", "code"],
    "actions": ["dose", "drug"],
    "choices": {"drug": ["none", "x"], "dose": [0, 50, 100]},
    "reward": "outcome",
    "episode": ["hospital", "patient"],
    "time": "day",
    "terminal": "died",
    "missing": "mean",
    "categories": ["code"],
    "masks": {"drug": ["none_ok", "x_ok"]},
    "keep": ["propensity"],
}
EPISODES = 7


def table(seed: int = 0, shuffled: bool = False) -> pyarrow.Table:
    """A log with dates, words, empty cells, seconds since 1970, masks and final states."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for patient, length in enumerate(rng.integers(1, 9, EPISODES)):
        for day in range(length + 1):
            is_final = day == length
            rows.append(
                {
                    "hospital": "ab"[patient % 2],
                    "patient": f"{patient:03}",
                    "day": day,
                    "pulse": None if rng.random() < 0.2 else float(rng.normal(80, 9)),
                    "ward": None if rng.random() < 0.2 else str(rng.choice(["icu", "er"])),
                    "seen": f"2024-05-{rng.integers(1, 30):02}",
                    "smoker": str(rng.choice(["yes", "no"])),
                    "seconds": 1_700_000_000 + int(rng.integers(100)),
                    "code": int(rng.integers(250, 253)),
                    "dose": None if is_final else int(rng.choice([0, 50, 100])),
                    "drug": None if is_final else str(rng.choice(["none", "x"])),
                    "outcome": None if is_final else float(rng.normal()),
                    "died": int(day == length - 1 and patient % 3 == 0),
                    "none_ok": 1,
                    "x_ok": 1,
                    "propensity": float(rng.random()),
                }
            )
    order = rng.permutation(len(rows)) if shuffled else np.arange(len(rows))
    return pyarrow.Table.from_pylist([rows[i] for i in order])


def write(folder: Path, whole: pyarrow.Table, cuts: list[int], kind: str) -> Path:
    """Writes a table's rows between cuts to files of their own."""
    folder.mkdir()
    edges = [0, *sorted(cuts), len(whole)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        part = whole.slice(start, end - start)
        if kind == "csv":
            arrow_csv.write_csv(part, folder / f"part-{number}.csv")
        else:
            parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=5)
    (folder / "_SUCCESS").write_text("")
    return folder


def require_same(one: DeviceReplayBuffer, other: DeviceReplayBuffer) -> None:
    """Fails unless all that two datasets hold is equal."""
    for name in ("observations", "actions", "rewards", "terminals", "episode_starts", "masks"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.source.rows, other.source.rows)
    assert one.source.count == other.source.count
    for name in READING["keep"]:
        np.testing.assert_array_equal(
            one.source.column(name).values, other.source.column(name).values
        )
    assert one.preparation == other.preparation


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes pieces of some rows, fewer than an episode has, of what is read and written."""

    def set_rows(rows: int) -> None:
        monkeypatch.setattr(parts, "_ROWS_AT_ONCE", rows)
        monkeypatch.setattr(csv_parquet, "_ROWS_AT_ONCE", rows)
        monkeypatch.setattr(mapped_log, "_BYTES_AT_ONCE", 40 * rows)
        monkeypatch.setattr(csv_files, "_BLOCK", 150 * rows)  # bytes

    return set_rows


@pytest.mark.parametrize("missing", ["mean", "forward"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("rows", [2, 1000])
def test_parts_are_one_log_in_memory_and_mapped(
    rows: int, kind: str, shuffled: bool, missing: str, tmp_path: Path, small_pieces: Any
) -> None:
    whole = table(shuffled=shuffled)
    reading = READING | {"missing": missing}
    expected = from_table(whole, **reading)
    small_pieces(rows)
    folder = write(tmp_path / "log", whole, [3, 4, 4, 11], kind)  # a file without rows, too
    require_same(from_table(folder, **reading), expected)
    mapped = from_table(folder, memory_map=tmp_path / "map", **reading)
    require_same(mapped, expected)
    require_same(from_table(folder, memory_map=tmp_path / "map", **reading), expected)
    file = tmp_path / f"log.{kind}"
    arrow_csv.write_csv(whole, file) if kind == "csv" else parquet.write_table(whole, file)
    require_same(from_table(file, memory_map=tmp_path / "other map", **reading), expected)


@given(st.integers(0, 99), st.lists(st.integers(0, 20), max_size=5), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_cuts_make_the_same_log(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    cuts: list[int],
    shuffled: bool,
    is_csv: bool,
) -> None:
    tmp_path = tmp_path_factory.mktemp("cuts")
    whole = table(seed, shuffled)
    cuts = [min(cut, len(whole)) for cut in cuts]
    folder = write(tmp_path / "log", whole, cuts, "csv" if is_csv else "parquet")
    expected = from_table(whole, **READING)
    require_same(from_table(folder, memory_map=tmp_path / "map", **READING), expected)


def test_numbers_in_names_are_numbers(tmp_path: Path) -> None:
    cells = {"e": [0], "s": [0.0], "a": [0], "r": [0.0]}
    for number in (10, 9, 1):
        row = pyarrow.table(cells | {"e": [number], "r": [float(number)]})
        parquet.write_table(row, tmp_path / f"data_{number}.parquet")
    log = from_table(tmp_path, observations=["s"], actions=["a"], nvec=[2], reward="r", episode="e")
    assert log.rewards.tolist() == [1.0, 9.0, 10.0]


SMALL: dict[str, Any] = {
    "observations": ["s"],
    "actions": ["a"],
    "nvec": [2],
    "reward": "r",
    "episode": "e",
}
MAPS = pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "mapped"])
KINDS = pytest.mark.parametrize("kind", ["csv", "parquet"])


def small_log(tmp_path: Path, kind: str, *changes: dict[str, Any]) -> Path:
    """Writes parts of two rows each, with changed columns."""
    folder = tmp_path / "log"
    folder.mkdir()
    for number, change in enumerate(changes):
        cells = {"e": [number, number], "s": [0.5, 1.5], "a": [0, 1], "r": [1.0, 2.0]} | change
        part = pyarrow.table({name: column for name, column in cells.items() if column})
        if kind == "csv":
            arrow_csv.write_csv(part, folder / f"p{number}.csv")
        else:
            parquet.write_table(part, folder / f"p{number}.parquet")
    return folder


def read_small(folder: Path, mapped: bool, **changes: Any) -> DeviceReplayBuffer:
    where = {"memory_map": folder.parent / "map"} if mapped else {}
    return from_table(folder, **SMALL | where | changes)


@MAPS
@KINDS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": []}, r"In p1\.\w+, which begins with row 2 of the whole: There is no column 'r'"),
        ({"a": [0, 7]}, r"In p1\.\w+: Row 1 has 'a' = '?7'?, which is not one of its choices"),
        ({"s": [None, 1.0]}, r"In p1\.\w+: Row 0 has no 's'"),
        ({"s": [1.0, 1e300]}, r"In p1\.\w+: Row 1 has 's' = 1e\+?300, which is not finite"),
        ({"e": [None, 1]}, r"In p1\.\w+: Row 0 has no 'e'"),
        ({"e": [1, 0]}, r"In p1\.\w+: Episode '?0'? appears again in row 1, after others"),
    ],
)
def test_faults_are_named_by_file_row_and_column(
    change: dict[str, Any], message: str, kind: str, mapped: bool, tmp_path: Path
) -> None:
    folder = small_log(tmp_path, kind, {}, change, {})
    with pytest.raises(InvalidDatasetError, match=message):
        read_small(folder, mapped)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]  # nothing half-written


@MAPS
def test_rows_of_another_length_are_named(mapped: bool, tmp_path: Path) -> None:
    folder = small_log(tmp_path, "csv", {}, {})
    with (folder / "p1.csv").open("a") as file:
        file.write("1,2\n")
    with pytest.raises(InvalidDatasetError, match=r"Row 2 of .*p1.csv has 2 cells"):
        read_small(folder, mapped)


@MAPS
def test_parts_of_other_types_are_refused_or_made_alike(mapped: bool, tmp_path: Path) -> None:
    folder = small_log(tmp_path, "parquet", {}, {"s": [3, 4]})  # whole numbers: floats hold them
    log = read_small(folder, mapped)
    assert log.observations[:, 0].tolist() == [0.5, 1.5, 1.5, 3.0, 4.0, 4.0]
    parquet.write_table(
        pyarrow.table({"e": [1], "s": ["x"], "a": [0], "r": [1.0]}), folder / "p2.parquet"
    )
    message = r"column 's' to have one type, got double in p0.parquet and string in p2.parquet"
    with pytest.raises(InvalidDatasetError, match=message):
        read_small(folder, mapped, **({"memory_map": tmp_path / "map 2"} if mapped else {}))
    (folder / "p2.parquet").write_text("none")
    with pytest.raises(InvalidDatasetError, match=r"In p2.parquet, .*is not a Parquet file"):
        read_small(folder, mapped, **({"memory_map": tmp_path / "map 2"} if mapped else {}))


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"folder of .csv files .* with none"):
        from_table(tmp_path, **SMALL)
    (tmp_path / "year=2024").mkdir()
    with pytest.raises(InvalidDatasetError, match=r"with year=2024. Files in folders within"):
        from_table(tmp_path, **SMALL)
    (tmp_path / "a.csv").write_text("e,s,a,r\n")
    (tmp_path / "b.parquet").write_text("")
    with pytest.raises(InvalidDatasetError, match=r"with a.csv, b.parquet, year=2024"):
        from_table(tmp_path, **SMALL)


@MAPS
def test_a_column_that_is_words_in_a_later_part_is_words(mapped: bool, tmp_path: Path) -> None:
    folder = small_log(tmp_path, "csv", {"s": [1, 2]}, {"s": ["low", "high"]})
    log = read_small(folder, mapped, categories=["s"])
    assert log.preparation is not None
    assert log.preparation.features == ["s=1", "s=2", "s=high", "s=low"]
    with pytest.raises(InvalidDatasetError, match=r"In p1.csv: .* hold numbers, row 0 has 'low'"):
        from_table(folder, **SMALL | ({"memory_map": tmp_path / "map 2"} if mapped else {}))
