"""Many processes that want one dataset at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import minari
import pytest
from minari.storage import get_dataset_path

from spin_d3rlpy.data import loader
from spin_d3rlpy.data.check import check_dataset
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.staging import is_complete
from tests.data import crowd
from tests.subprocesses import run_processes


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari writes to the dataset's folder itself: two downloads would get in each other's way."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name, downloads, together = "others/things-v0", [], Barrier(4)

    def download(wanted: str) -> None:
        downloads.append(wanted)
        data = Path(get_dataset_path(wanted)) / "data"
        data.mkdir(parents=True)
        (data / "metadata.json").write_text("{}")

    monkeypatch.setattr(minari, "download_dataset", download)

    def provide(_: int) -> str:
        together.wait()
        return loader._provide(name, None, None, False)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(provide, range(4))) == [name] * 4
    assert downloads == [name]
    assert is_complete(name)
