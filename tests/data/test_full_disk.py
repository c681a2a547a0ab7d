"""A disk without room is one clear error: nothing stays half-written, and the process lives."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from packaging.version import Version

from spin_d3rlpy.data import build_dataset, load_dataset, parse_name
from spin_d3rlpy.data.minari import builder, remote, staging
from spin_d3rlpy.data.minari.importer import import_published
from spin_d3rlpy.data.minari.workers import WorkerEndedError
from spin_d3rlpy.errors import DatasetWriteError
from tests.subprocesses import import_path

NAME = "spin/cheetah-run-b3/random-v0"
# Files may grow to 200 kB; a dataset of 4,000 steps has 400 kB.
SCRIPT = """
import contextlib, io, json, resource, sys
from pathlib import Path
import numpy as np
from spin_d3rlpy.data import build_dataset, from_table, parse_name, save_dataset
from spin_d3rlpy.data.minari.importer import import_published
from spin_d3rlpy.errors import DatasetWriteError
rows = np.arange(8000)
table = {"x": rows, "a": rows % 2, "r": rows, "e": rows // 1000}
columns = {"observations": ["x"] * 20, "actions": ["a"], "reward": "r", "episode": "e"}
with contextlib.redirect_stderr(io.StringIO()):  # a line about what was read
    buffer = from_table(table, **columns, nvec=[2])
spec = parse_name("spin/cheetah-run-b3/random-v0", 4000)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
messages = []
for write in (
    lambda: build_dataset(spec, jobs=1, progress=False),
    lambda: save_dataset(buffer, "me/log-v0"),
    lambda: import_published(Path(sys.argv[2]), "spin/maze-a3/medium-published-v0"),
):
    try:
        write()
    except DatasetWriteError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_000, 200_000])
def test_a_file_that_cannot_grow_is_one_clear_error(
    limit: int, datasets_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("resource")
    published = tmp_path / "buffer.pkl"
    state = np.zeros(2, np.float32)
    step = (state, np.zeros(3, np.int64), 0.0, state, 0)
    published.write_bytes(pickle.dumps([step] * 20_000))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(limit), str(published)],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    if Version(np.__version__) >= Version("2"):  # before, it left a file to be closed too late
        assert done.stderr == ""
    build, save, imported = json.loads(done.stdout)
    in_maze = (imported, "spin/maze-a3")
    for message, folder in ((build, "spin/cheetah-run-b3"), (save, "me"), in_maze):
        assert f"could not be written to {datasets_folder / folder} (" in message
        assert "File too large" in message  # the cause, not only how the writing process ended
        assert "bytes free" in message
    files = [p for p in datasets_folder.rglob("*") if p.is_file()]
    assert all(".chunks-" in p.parts[-2] and p.suffix == ".npz" for p in files)
    assert minari.list_local_datasets() == {}
    build_dataset(parse_name(NAME, 4000), jobs=1, progress=False)  # there is room now
    assert list(datasets_folder.rglob("*.npz")) == []


def test_a_download_that_fills_the_disk_says_so(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*args: Any, **kwargs: Any) -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("the client gave up") from error

    storage = SimpleNamespace(download_dataset=download)
    monkeypatch.setattr(minari, "list_remote_datasets", lambda **_: {"others/things-v0": {}})
    monkeypatch.setattr(remote, "get_cloud_storage", lambda: storage)
    with pytest.raises(DatasetWriteError, match="No space left") as caught:
        load_dataset("others/things-v0")
    assert str(datasets_folder) in str(caught.value)


def test_too_little_room_is_found_out_before_the_work(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_folder: Any) -> SimpleNamespace:
        return SimpleNamespace(free=free)

    def play(*_: Any) -> None:
        raise AssertionError("Nothing may be played.")

    spec = parse_name(NAME, 4000)
    # 17 features in float32; 6 slots in int8, and 64 bits for each while it is built.
    # Rewards have 32 bits, and 64 while it is built; two flags.
    stored, meanwhile = 4000 * (17 * 4 + 6 + 6), 4000 * (17 * 4 + 6 * 8 + 8)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", usage)
        patch.setattr(builder, "play_chunks", play)
        free = stored + meanwhile - 1
        with pytest.raises(DatasetWriteError, match=rf"takes at least {free + 1:,} bytes") as error:
            build_dataset(spec, jobs=1, progress=False)
        assert f"It has {free:,} bytes free" in str(error.value)
        assert [p for p in datasets_folder.rglob("*") if p.is_file()] == []
        free += 1
        with pytest.raises(AssertionError, match="played"):
            build_dataset(spec, jobs=1, progress=False)


@pytest.mark.slow
def test_the_estimate_is_near_the_size(datasets_folder: Path) -> None:
    spec = parse_name(NAME, 20_000)
    env = gymnasium.make(spec.task.env_id, **spec.task.env_kwargs)
    kept: list[int] = []
    played = staging.PlayedChunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(played, "remove", lambda self: kept.append(self.stored_bytes()))
        build_dataset(spec, jobs=1, progress=False)
    stored, meanwhile = builder.build_bytes(spec, env)
    files = staging.dataset_bytes(minari.load_dataset(spec.name))
    assert stored <= files <= 1.5 * stored
    assert meanwhile <= kept[0] <= 1.5 * meanwhile


def _write_nothing(patch: pytest.MonkeyPatch, error: Exception) -> None:
    class Fails:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def submit(self, *_: Any) -> Any:
            raise error

        def close(self) -> None: ...

    patch.setattr(staging, "Workers", Fails)


@pytest.mark.parametrize(
    ("error", "full", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), False, r"\(No space left on device\)"),
        (
            WorkerEndedError("It ended (exit code -11)."),
            True,
            r"\(No space left on device: It ended",
        ),
        (RuntimeError("HDF5 failed."), True, r"\(No space left on device: HDF5 failed\)"),
        (WorkerEndedError("It ended (exit code -9)."), False, "has room for the data: look for"),
    ],
)
def test_imports_on_a_full_disk_name_the_cause(
    error: Exception,
    full: bool,
    expected: str,
    datasets_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = np.zeros(2, np.float32)
    step = (state, np.zeros(3, np.int64), 0.0, state, 0)
    published = tmp_path / "buffer.pkl"
    published.write_bytes(pickle.dumps([step] * 500))
    _write_nothing(monkeypatch, error)
    if full:

        def no_room(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(DatasetWriteError, match=expected):
        import_published(published, "spin/maze-a3/medium-published-v0")
    assert [p for p in datasets_folder.rglob("*") if p.is_file()] == []
    assert minari.list_local_datasets() == {}
