"""Atomic files: what a killed process leaves is removed by the next one that writes the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spin_d3rlpy.errors import FileWriteError
from spin_d3rlpy.files.atomic import atomic_write, partial_path, write_text
from tests.subprocesses import import_path

# Files may grow to 2 kB; each of these has more.
FULL_DISK = """
import json, resource, sys
from pathlib import Path
import numpy as np
import torch
from spin_d3rlpy import FactoredIQL, save_policy
from spin_d3rlpy.asm import TransformerConfig, save_asm
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.errors import FileWriteError
from spin_d3rlpy.files.results import write_csv, write_json
from spin_d3rlpy.runs.page import Page
from spin_d3rlpy.runs.play import _open_video
from spin_d3rlpy.runs.plots import _figure, save_figure
from spin_d3rlpy.training.checkpoints import write_checkpoint

folder = Path(sys.argv[1])
algo = FactoredIQL(nvec=[3, 2])
algo.create_impl((5,), 0)
page = Page("x", "y")
page.paragraph("word " * 1000)
noise = np.random.default_rng(0).integers(0, 255, (9, 64, 64, 3), dtype=np.uint8)

def record(path):
    with _open_video(path, 10) as append:
        for frame in noise:
            append(frame)

asm = ActionStructureModel(5, [3, 2], TransformerConfig(16, 1, 2, 8))
writers = {
    "a.pt": lambda path: algo.save_policy(str(path)),
    "masked.pt": lambda path: algo.save_policy(str(path), masks=True),
    "a.onnx": lambda path: algo.save_policy(str(path)),
    "a.d3": lambda path: algo.save(str(path)),
    "model.pt": lambda path: algo.save_model(str(path)),
    "a.safetensors": lambda path: save_policy(algo, path),
    "asm.safetensors": lambda path: save_asm(asm, path),
    "a.csv": lambda path: write_csv(path, [{"x": i} for i in range(1000)]),
    "a.json": lambda path: write_json(path, {"x": list(range(1000))}),
    "a.html": page.write,
    "a.png": lambda path: save_figure(_figure(4, 3), path),
    "a.ckpt": lambda path: write_checkpoint(path, {"x": torch.ones(1000)}),
    "a.gif": record,
    "a.mp4": record,
}
for name, write in writers.items():
    write(folder / name)
before = {name: (folder / name).read_bytes() for name in writers}
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
wrong = []
for name, write in writers.items():
    try:
        write(folder / name)
        wrong.append(f"{name}: no error")
    except FileWriteError as error:
        if str(folder / name) not in str(error):
            wrong.append(f"{name}: {error}")
    if (folder / name).read_bytes() != before[name]:
        wrong.append(f"{name} has changed")
left = sorted(p.name for p in folder.iterdir())
print(json.dumps([wrong, left == sorted(writers)]))
"""
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


@pytest.mark.slow
def test_no_writer_harms_a_file_or_the_process_on_a_full_disk(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL_DISK, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[], True]


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for path in (blocked / "a.csv", tmp_path / "none" / "a.csv"):
        with pytest.raises(FileWriteError, match=rf"{path} could not be written \("):
            write_text(path, "a")
    assert list(tmp_path.iterdir()) == [blocked]


def test_an_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(path, "old")
    with pytest.raises(TypeError, match="data must be str"):
        write(path, 5)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    assert path.read_text() == "old"
