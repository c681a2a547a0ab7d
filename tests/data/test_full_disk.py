"""A disk without room is one clear error: nothing stays half-written, and the process lives."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import minari
import numpy as np
import pytest

from spin_d3rlpy.data import build_dataset, from_table, load_dataset, parse_name, save_dataset
from spin_d3rlpy.data.staging import PlayedChunks, Staging
from spin_d3rlpy.errors import DatasetWriteError
from tests.subprocesses import import_path

NAME = "spin/cheetah-run-b3/random-v0"
# Files may grow to 200 kB; a dataset of 4,000 steps has 400 kB.
SCRIPT = """
import json, resource, sys
import numpy as np
from spin_d3rlpy.data import build_dataset, from_table, parse_name, save_dataset
from spin_d3rlpy.data.staging import PlayedChunks, Staging
from spin_d3rlpy.errors import DatasetWriteError
rows = np.arange(8000)
table = {"x": rows, "a": rows % 2, "r": rows, "e": rows // 1000}
columns = {"observations": ["x"] * 20, "actions": ["a"], "reward": "r", "episode": "e"}
buffer = from_table(table, **columns, nvec=[2])
spec = parse_name("spin/cheetah-run-b3/random-v0", 4000)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
messages = []
for write in (
    lambda: build_dataset(spec, jobs=1, progress=False),
    lambda: save_dataset(buffer, "me/log-v0"),
):
    try:
        write()
    except DatasetWriteError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


@pytest.mark.parametrize("limit", [1_000, 200_000])
def test_a_file_that_cannot_grow_is_one_clear_error(limit: int, datasets_folder: Path) -> None:
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(limit)],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    build, save = json.loads(done.stdout)
    for message, folder in ((build, "spin/cheetah-run-b3"), (save, "me")):
        assert f"could not be written to {datasets_folder / folder} (" in message
        assert "bytes; " in message
        assert "are free" in message
    files = [p for p in datasets_folder.rglob("*") if p.is_file()]
    assert all(".chunks-" in p.parts[-2] and p.suffix == ".npz" for p in files)
    assert minari.list_local_datasets() == {}
    build_dataset(parse_name(NAME, 4000), jobs=1, progress=False)  # there is room now
    assert list(datasets_folder.rglob("*.npz")) == []


def _free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_what_does_not_fit_is_not_begun(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, 1_234_567)
    with pytest.raises(DatasetWriteError, match=r"too little space.*1,234,567 are free") as caught:
        build_dataset(parse_name(NAME), jobs=1, progress=False)
    assert str(datasets_folder / "spin" / "cheetah-run-b3") in str(caught.value)
    steps = np.arange(100_000)
    table = {"x": steps, "a": steps % 2, "e": 0 * steps}
    log = from_table(table, observations=["x"], actions=["a"], reward="x", episode="e", nvec=[2])
    with pytest.raises(DatasetWriteError, match="too little space"):
        save_dataset(log, "me/log-v0")
    assert [p for p in datasets_folder.rglob("*") if not p.is_dir()] == []


@pytest.mark.parametrize("name", [NAME, "spin/maze-a3/medium-expert-v0"])
def test_the_estimate_is_a_little_more_than_what_is_taken(
    name: str, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[int] = []
    chunks: list[int] = []
    remove = PlayedChunks.remove

    def measured(self: PlayedChunks) -> None:
        chunks.append(self.bytes)
        remove(self)

    monkeypatch.setattr(Staging, "require", lambda self, needed: estimates.append(needed))
    monkeypatch.setattr(PlayedChunks, "remove", measured)
    spec = parse_name(name, 10_000)
    build_dataset(spec, jobs=1, progress=False)
    size = sum(p.stat().st_size for p in datasets_folder.rglob("main_data.hdf5"))
    # The tests' maze policies do not find the goal, so that episodes are fewer than of an expert.
    low = 1.0 if name == NAME else 0.9
    assert low * (size + chunks[0]) <= estimates[0] <= 10 * (size + chunks[0])
    if name == NAME:
        assert estimates[0] < 1.1 * (size + chunks[0])


def test_a_download_that_fills_the_disk_says_so(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*args: Any, **kwargs: Any) -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("the client gave up") from error

    monkeypatch.setattr(minari, "download_dataset", download)
    with pytest.raises(DatasetWriteError, match="No space left") as caught:
        load_dataset("others/things-v0")
    assert str(datasets_folder) in str(caught.value)
