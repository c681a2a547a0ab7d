"""A disk without room is one clear error: nothing stays half-written, and the process lives."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import minari
import pytest

from spin_d3rlpy.data import build_dataset, load_dataset, parse_name, remote
from spin_d3rlpy.errors import DatasetWriteError
from tests.subprocesses import import_path

NAME = "spin/cheetah-run-b3/random-v0"
# Files may grow to 200 kB; a dataset of 4,000 steps has 400 kB.
SCRIPT = """
import contextlib, io, json, resource, sys
import numpy as np
from spin_d3rlpy.data import build_dataset, from_table, parse_name, save_dataset
from spin_d3rlpy.data.staging import PlayedChunks, Staging
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
):
    try:
        write()
    except DatasetWriteError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


@pytest.mark.parametrize("limit", [pytest.param(1_000, marks=pytest.mark.slow), 200_000])
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
