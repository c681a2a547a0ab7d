"""Observations in a file instead of in memory: the same data, in little memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardObservationScaler
from gymnasium.spaces import Box, MultiDiscrete

from spin_d3rlpy import SPINIQL, FactoredIQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.errors import InvalidDatasetError
from tests.algos.runs import SETTINGS, make, outcome, seed
from tests.data.conftest import ForeignEpisode
from tests.measure.kills import digest
from tests.subprocesses import run_python

Make = Callable[..., Any]
NAME = "others/things-v0"
SIZE = 5


def _episode(rng: np.random.Generator, length: int, size: int) -> ForeignEpisode:
    return ForeignEpisode(
        observations=rng.normal(size=(length + 1, size)).astype(np.float32),
        actions=rng.integers([3, 5, 2], size=(length, 3)).astype(np.int8),
        rewards=rng.normal(size=length).astype(np.float32),
    )


@pytest.fixture
def dataset(make_minari: Make) -> Any:
    rng = np.random.default_rng(0)
    episodes = [_episode(rng, length, SIZE) for length in (40, 7, 23, 11)]
    return make_minari(MultiDiscrete([3, 5, 2]), episodes, Box(-9, 9, (SIZE,), np.float32))


@pytest.fixture
def in_memory(dataset: Any) -> DeviceReplayBuffer:
    return DeviceReplayBuffer.from_minari(dataset)


@pytest.fixture
def mapped(dataset: Any, tmp_path: Path) -> DeviceReplayBuffer:
    folder = tmp_path / "maps"
    folder.mkdir()
    return DeviceReplayBuffer.from_minari(dataset, map_in=folder)


def _is_mapped(buffer: DeviceReplayBuffer) -> bool:
    """Whether an address in the middle of the observations belongs to a deleted file."""
    address = buffer.observations.data_ptr() + buffer.observations.nbytes // 2
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.endswith("(deleted)")
    return False


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_mapped_data_are_the_same_and_leave_no_file(
    mapped: DeviceReplayBuffer, in_memory: DeviceReplayBuffer, tmp_path: Path
) -> None:
    assert torch.equal(mapped.observations, in_memory.observations)
    assert _is_mapped(mapped)
    assert not _is_mapped(in_memory)
    assert list((tmp_path / "maps").iterdir()) == []


@linux
def test_parts_of_mapped_data_are_mapped(
    mapped: DeviceReplayBuffer, in_memory: DeviceReplayBuffer
) -> None:
    for part, expected in zip(mapped.split(0.4), in_memory.split(0.4), strict=True):
        assert _is_mapped(part)
        assert torch.equal(part.observations, expected.observations)


@pytest.mark.parametrize("scaler", [StandardObservationScaler, MinMaxObservationScaler])
@pytest.mark.parametrize("algo_class", [SPINIQL, FactoredIQL])
def test_training_on_mapped_data_is_the_same(
    algo_class: Any, scaler: Any, mapped: DeviceReplayBuffer, in_memory: DeviceReplayBuffer
) -> None:
    digests = []
    for buffer in (mapped, in_memory):
        seed(1)
        algo = make(algo_class, observation_scaler=scaler())
        digests.append(digest(outcome(algo, algo.fit(buffer, **SETTINGS))))
    assert digests[0] == digests[1]


def test_mapped_data_have_the_same_moments(
    mapped: DeviceReplayBuffer, in_memory: DeviceReplayBuffer
) -> None:
    for one, other in zip(mapped.moments(), in_memory.moments(), strict=True):
        assert torch.equal(one, other)


def test_a_folder_without_room_is_a_clear_error(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InvalidDatasetError, match=r"cannot be mapped.*No such file"):
        DeviceReplayBuffer.from_minari(dataset, map_in=tmp_path / "nowhere")
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(InvalidDatasetError, match=r"GiB are needed.*No space left.*memory_map="):
        DeviceReplayBuffer.from_minari(dataset, map_in=tmp_path)


LIMITED = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
from d3rlpy.logging import NoopAdapterFactory
from pathlib import Path
from spin_d3rlpy import FactoredIQL, errors
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_local

def fit(n, **where):
    buffer = DeviceReplayBuffer.from_minari(dataset, n, **where)
    algo = FactoredIQL(batch_size=32)
    algo.fit(buffer, n_steps=5, logger_adapter=NoopAdapterFactory(), show_progress=False)

dataset = open_local("others/things-v0")
fit(1)  # what is imported and allocated once
status = open("/proc/self/status").read()
data = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
limit = data * 1024 + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    fit(None)
    print("no limit")
except errors.InvalidDatasetError as error:
    print("refused" if "memory_map=True" in str(error) else error)
fit(None, map_in=Path(sys.argv[2]))
print("trained")
"""


@linux
@pytest.mark.slow
def test_data_larger_than_the_memory_limit_train_mapped(make_minari: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [_episode(rng, 1000, 500) for _ in range(60)]  # 120 MB
    make_minari(MultiDiscrete([3, 5, 2]), episodes, Box(-9, 9, (500,), np.float32))
    assert open_local(NAME).total_steps == 60_000
    printed = run_python(LIMITED, str(20 * 2**20), str(tmp_path)).splitlines()
    assert [line for line in printed if line in ("no limit", "refused", "trained")] == [
        "refused",
        "trained",
    ]
