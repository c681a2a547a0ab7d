"""The folder of a log that is mapped: whole or not there, used again for the same log only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from spin_d3rlpy import DeviceReplayBuffer, FactoredIQL, from_table
from spin_d3rlpy.data.buffer import storage
from spin_d3rlpy.data.tables import mapped_log
from spin_d3rlpy.errors import FileWriteError, InvalidDatasetError
from spin_d3rlpy.files.atomic import partial_path
from tests.algos.runs import SETTINGS, make, outcome, seed
from tests.measure.kills import digest
from tests.measure.memory import Peak
from tests.measure.process_memory import resident_bytes

READING: dict[str, Any] = {
    "observations": ["s", "t"],
    "actions": ["a", "b"],
    "nvec": [2, 5],
    "reward": "r",
    "episode": "e",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    n = 60
    columns = {
        "e": np.arange(n) // 7,
        "s": rng.normal(size=n),
        "t": rng.normal(size=n),
        "a": rng.integers(0, 2, n),
        "b": rng.integers(0, 5, n),
        "r": rng.normal(size=n),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_holds_the_arrays_and_nothing_else(file: Path, tmp_path: Path) -> None:
    from_table(file, memory_map=tmp_path / "map", **READING)
    arrays = ["actions", "lengths", "observations", "rewards", "rows", "terminals"]
    expected = sorted(["log.json", *(f"{name}.npy" for name in arrays)])
    assert names_in(tmp_path / "map") == expected
    assert names_in(tmp_path) == ["log.parquet", "map"]


def test_training_on_a_mapped_log_is_the_same(file: Path, tmp_path: Path) -> None:
    digests = []
    mapped: dict[str, Any] = {"memory_map": tmp_path / "map"}
    for where in ({}, mapped):
        buffer = from_table(file, **READING, **where)
        seed(1)
        algo = make(FactoredIQL)
        digests.append(digest(outcome(algo, algo.fit(buffer, **SETTINGS))))
    assert digests[0] == digests[1]


def test_parts_of_a_mapped_log_are_mapped_next_to_it(file: Path, tmp_path: Path) -> None:
    whole = from_table(file, **READING)
    mapped = from_table(file, memory_map=tmp_path / "map", **READING)
    before = names_in(tmp_path / "map")
    for part, expected in zip(mapped.split(0.3), whole.split(0.3), strict=True):
        assert part.stored.map_in == tmp_path / "map"
        assert torch.equal(part.observations, expected.observations)
        assert torch.equal(part.actions, expected.actions)
        np.testing.assert_array_equal(part.source.rows, expected.source.rows)
    assert names_in(tmp_path / "map") == before  # unnamed files


def test_nobody_writes_to_the_files(file: Path, tmp_path: Path) -> None:
    mapped = from_table(file, memory_map=tmp_path / "map", **READING)
    kept = mapped.rewards.clone()
    mapped.rewards.zero_()  # a copy of the page, in this process
    assert torch.equal(from_table(file, memory_map=tmp_path / "map", **READING).rewards, kept)


def test_the_same_log_is_not_read_again(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = from_table(file, memory_map=tmp_path / "map", **READING)
    inode = (tmp_path / "map" / "observations.npy").stat().st_ino
    capsys.readouterr()
    again = from_table(str(file), memory_map=str(tmp_path / "map"), **READING)
    assert "holds this log already: 60 steps of 9 episodes" in capsys.readouterr().err
    assert (tmp_path / "map" / "observations.npy").stat().st_ino == inode
    assert torch.equal(first.observations, again.observations)
    assert first.preparation == again.preparation


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reward": "t", "observations": ["s"]}, "differs: observations, reward"),
        ({"nvec": [2, 6]}, "differs: choices"),
        ({"missing": "mean"}, "differs: missing"),
        ({"masks": np.ones((60, 2, 5), bool)}, "differs: masks"),
    ],
)
def test_other_arguments_are_refused(
    changes: dict[str, Any], named: str, file: Path, tmp_path: Path
) -> None:
    from_table(file, memory_map=tmp_path / "map", **READING)
    with pytest.raises(InvalidDatasetError, match=named):
        from_table(file, memory_map=tmp_path / "map", **READING | changes)


def test_a_changed_file_is_refused(file: Path, tmp_path: Path) -> None:
    from_table(file, memory_map=tmp_path / "map", **READING)
    os.utime(file, ns=(0, 0))
    with pytest.raises(InvalidDatasetError, match=r"what differs: the files. Delete the folder"):
        from_table(file, memory_map=tmp_path / "map", **READING)


def test_a_folder_of_something_else_is_not_touched(file: Path, tmp_path: Path) -> None:
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidDatasetError, match=r"holds something else. Pass another one"):
        from_table(file, memory_map=tmp_path / "map", **READING)
    assert names_in(tmp_path / "map") == ["thesis.txt"]
    with pytest.raises(InvalidDatasetError, match="holds something else"):
        from_table(file, memory_map=file, **READING)
    with pytest.raises(ValueError, match="memory_map= to name a folder, got True"):
        from_table(file, memory_map=True, **READING)  # type: ignore[arg-type]
    with pytest.raises(FileWriteError, match="could not be written"):
        from_table(file, memory_map=tmp_path / "no" / "where", **READING)


def test_columns_in_memory_are_not_mapped(tmp_path: Path) -> None:
    columns = {"e": [1], "s": [1.0], "t": [1.0], "a": [0], "b": [0], "r": [0.0]}
    with pytest.raises(InvalidDatasetError, match="of type dict, which is in memory already"):
        from_table(columns, memory_map=tmp_path / "map", **READING)


@pytest.mark.parametrize("damage", ["cut", "missing", "about", "other"])
def test_a_damaged_folder_is_named(damage: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "map"
    from_table(file, memory_map=folder, **READING)
    if damage == "cut":
        os.truncate(folder / "observations.npy", 200)
    elif damage == "missing":
        (folder / "rewards.npy").unlink()
    elif damage == "other":
        np.save(folder / "lengths.npy", np.array([60]))
    else:
        text = (folder / "log.json").read_text()
        (folder / "log.json").write_text(text.replace('"nvec"', '"nvecs"', 1))
    with pytest.raises(InvalidDatasetError, match=r"is damaged .*Delete the folder"):
        from_table(file, memory_map=folder, **READING)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_reading_leaves_nothing(
    error: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        assert len(names_in(tmp_path)) == 2  # the temporary folder is there
        raise error

    monkeypatch.setattr(mapped_log, "_write_rows", fails)
    expected = KeyboardInterrupt if error is KeyboardInterrupt else FileWriteError
    with pytest.raises(expected):
        from_table(file, memory_map=tmp_path / "map", **READING)
    assert names_in(tmp_path) == ["log.parquet"]


def test_what_a_killed_process_left_is_removed(file: Path, tmp_path: Path) -> None:
    left = partial_path(tmp_path / "map")
    left = left.with_name(left.name.replace(str(os.getpid()), str(2**22 + 1)))  # no such process
    (left / "work").mkdir(parents=True)
    from_table(file, memory_map=tmp_path / "map", **READING)
    assert names_in(tmp_path) == ["log.parquet", "map"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_mapped_log_takes_little_memory(tmp_path: Path) -> None:
    rows, features = 200_000, 100
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"e": np.arange(rows) // 50, "a": np.zeros(rows, np.int8)}
    columns |= {f"x{i}": rng.random(rows, np.float32) for i in range(features)}
    columns["r"] = columns["x0"]
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    reading: dict[str, Any] = {
        "observations": [f"x{i}" for i in range(features)],
        "actions": ["a"],
        "nvec": [2],
        "reward": "r",
        "episode": "e",
    }
    del columns
    from_table(tmp_path / "log.parquet", **reading | {"observations": ["x0"]})  # what is done once

    def peak(**where: Any) -> tuple[int, DeviceReplayBuffer]:
        before, watch = resident_bytes("RssAnon"), Peak("RssAnon")
        buffer = from_table(tmp_path / "log.parquet", **reading, **where)
        return watch.stop() - before, buffer

    mapped, _ = peak(memory_map=tmp_path / "map")
    in_memory, buffer = peak()
    size = buffer.observations.nbytes
    # In memory a part may be what the process had freed before.
    assert mapped < 0.5 * size < 0.6 * size < in_memory


def test_rows_of_a_batch_are_asked_for_together_if_they_are_mapped(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(storage, "read_ahead", lambda _, rows: asked.append(rows.tolist()))
    mapped = from_table(file, memory_map=tmp_path / "map", **READING)
    batch = mapped.sample_transition_batch(8)
    assert asked == [[*batch.rows.tolist(), *batch.next_rows.tolist()]]
    from_table(file, **READING).sample_transition_batch(8)
    assert len(asked) == 1
