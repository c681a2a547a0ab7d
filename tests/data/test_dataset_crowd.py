"""Many processes that want one dataset at the same time."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import minari
import pytest

from spin_d3rlpy.data import loader
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari import remote
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.minari.staging import is_complete
from tests.data import crowd
from tests.subprocesses import run_processes


@pytest.mark.slow
def test_ten_processes_end_with_one_good_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_processes(crowd.load, [(tmp_path, number) for number in range(10)])
    contents = {path.read_text() for path in tmp_path.glob("*.txt")}
    assert len(list(tmp_path.glob("*.txt"))) == 10
    assert len(contents) == 1
    name = crowd.FULL_NAME
    folder = tmp_path / "datasets" / Path(name).parent
    assert [path.name for path in folder.iterdir()] == [Path(name).name]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    assert check_dataset(open_local(name), replay_episodes=0).problems == []


def test_a_third_partys_dataset_is_downloaded_once(
    built_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name, downloads, together = "others/things-v0", [], Barrier(4)

    def download(wanted: str, folder: Path) -> None:
        downloads.append(wanted)
        source = built_folder / "spin" / "cheetah-run-b3" / "random-medium-expert-5k-v0"
        shutil.copytree(source, folder / wanted)

    storage = SimpleNamespace(download_dataset=download)
    monkeypatch.setattr(minari, "list_remote_datasets", lambda **_: {name: {}})
    monkeypatch.setattr(remote, "get_cloud_storage", lambda: storage)

    def provide(_: int) -> str:
        together.wait()
        return loader._provide(name, None, None, False, False)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(provide, range(4))) == [name] * 4
    assert downloads == [name]
    assert is_complete(name)
