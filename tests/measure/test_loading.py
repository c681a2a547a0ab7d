"""The loading benchmark, and the memory that it is there to bound."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from spin_d3rlpy.data import DeviceReplayBuffer
from tests.measure import loading
from tests.measure.process_memory import array_bytes


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)


def _write(episodes: int, length: int, size: int) -> MinariDataset:
    name = "tests/random-v0"
    folder = get_dataset_path(name) / "data"
    folder.parent.mkdir(parents=True)
    space = Box(-np.inf, np.inf, (size,), np.float32)
    storage = MinariStorage.new(folder, space, MultiDiscrete([3, 5]))
    storage.update_metadata({"dataset_id": name, "minari_version": "0.5.4"})
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        ends = np.zeros((2, length), bool)
        ends[1, -1] = True
        observations = rng.normal(size=(length + 1, size)).astype(np.float32)
        actions = rng.integers([3, 5], size=(length, 2)).astype(np.int8)
        rewards = np.zeros(length, np.float32)
        storage.update_episodes(
            [EpisodeBuffer(None, None, None, observations, actions, rewards, *ends, {})]
        )
    return MinariDataset(folder)


@pytest.mark.slow
def test_loading_takes_little_more_memory_than_the_arrays() -> None:
    dataset = _write(episodes=300, length=1000, size=17)  # 26 MB
    size = array_bytes(DeviceReplayBuffer.from_minari(dataset))
    assert size == 300 * (1001 * 17 * 4 + 1000 * (2 + 4 + 4 + 4))
    peak = loading.peak_bytes("spin_d3rlpy", dataset.id)
    assert size <= peak < 1.5 * size


@pytest.mark.slow
def test_the_command_writes_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "peak_bytes", lambda *_: 1)  # tested above
    out = tmp_path / "results" / "loading.csv"
    loading.main(out, 3000)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["way"] for row in rows] == list(loading.WAYS)
    assert rows[0]["times_ours"] == "1.00"
    assert {row["transitions"] for row in rows} == {"3000"}
    assert all(float(row["seconds"]) > 0 for row in rows)
    # An episode is loaded before memory is read, so these few transitions may take no more of it.
    assert all(np.isfinite(float(row["peak_over_arrays"])) for row in rows)
