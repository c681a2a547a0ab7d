"""Atomic files: what a killed process leaves is removed by the next one that writes the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spin_d3rlpy.files.atomic import atomic_write, partial_path
from tests.subprocesses import import_path

KILLED = """
import os, signal, sys
from pathlib import Path
from spin_d3rlpy.files.atomic import atomic_write
with atomic_write(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def write(path: Path, text: str = "whole") -> None:
    with atomic_write(path) as partial:
        partial.write_text(text)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    command = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": import_path()})
    assert done.returncode == -signal.SIGKILL
    assert [p.suffix for p in tmp_path.iterdir()] == [".partial"]
    write(tmp_path / "b.csv")  # another file's leftover may be another run's
    assert len(list(tmp_path.glob(".a.csv.*.partial"))) == 1
    write(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "b.csv"]
    assert path.read_text() == "whole"


def test_files_of_running_processes_and_other_machines_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    own = partial_path(path)
    alive = own.with_name(own.name.replace(f".{os.getpid()}.", f".{os.getppid()}."))
    elsewhere = own.with_name(f".a.csv.{'another-machine'}.999999999.partial")
    for other in (alive, elsewhere):
        other.touch()
    write(path)
    assert set(tmp_path.iterdir()) == {path, alive, elsewhere}


def test_an_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(path, "old")
    with pytest.raises(TypeError, match="data must be str"):
        write(path, 5)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    assert path.read_text() == "old"
