"""Sizes that a file declares are compared with what it stores, before memory is taken."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from minari.dataset.minari_storage import MinariStorage

from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.minari import environments, importer, sources
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError
from spin_d3rlpy.files import untrusted
from spin_d3rlpy.training.checkpoints import read_checkpoint


def test_an_array_that_is_not_stored_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        file.create_dataset("rewards", (10**7,), np.float32, chunks=(1000,))
        with pytest.raises(InvalidDatasetError, match="most of them are not stored"):
            sources._array(file.id, "rewards", (10**7,), "episode 0")


def test_a_compressed_array_of_zeros_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        zeros = np.zeros(10**6, np.float32)
        file.create_dataset("rewards", data=zeros, compression="gzip", compression_opts=9)
        assert len(sources._array(file.id, "rewards", (10**6,), "episode 0")) == 10**6


def test_more_episodes_than_the_file_can_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "main_data.hdf5").write_bytes(bytes(5000))
    with pytest.raises(InvalidDatasetError, match="declares 100000000 episodes"):
        environments.check_episode_count(tmp_path, 10**8, "x-v0")


# -- available memory ----------------------------------------------------------------------------

AVAILABLE = 1_000_000


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a megabyte is available."""
    monkeypatch.setattr(untrusted, "available_memory", lambda: AVAILABLE)


def test_available_memory_is_that_of_machine_container_and_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert 10**7 < untrusted.available_memory() < 10**15
    monkeypatch.setattr(untrusted, "_CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1000000\n")
    assert untrusted.available_memory() == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert untrusted.available_memory() > 3_000_000
    monkeypatch.setattr(untrusted, "_limit_of_process", lambda: -5)
    assert untrusted.available_memory() == 0


@pytest.mark.usefixtures("little_memory")
def test_compressed_zeros_larger_than_memory_are_refused_with_both_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        zeros = np.zeros(10**6, np.float32)
        file.create_dataset("rewards", data=zeros, compression="gzip", compression_opts=9)
        with pytest.raises(InvalidDatasetError, match=r"4,000,000 bytes .* 1,000,000 are avail"):
            sources._array(file.id, "rewards", (10**6,), "episode 0")


def test_short_arrays_are_read_without_asking_for_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask takes longer than to read a short episode."""
    monkeypatch.setattr(untrusted, "available_memory", lambda: pytest.fail("it was asked for"))
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        file.create_dataset("rewards", data=np.ones(5, np.float32))
        assert sources._array(file.id, "rewards", (5,), "episode 0").tolist() == [1.0] * 5


@pytest.mark.usefixtures("little_memory")
def test_what_minari_would_read_is_checked_before(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        for name in ("observations/a", "infos/b"):
            zeros = np.zeros(10**5, np.float64)
            file.create_dataset(f"episode_3/{name}", data=zeros, compression="gzip")
    sources._check_declared_sizes(tmp_path / "file.hdf5", [])
    with pytest.raises(InvalidDatasetError, match="Reading episode 3 would take 1,600,000 bytes"):
        sources._check_declared_sizes(tmp_path / "file.hdf5", [3])


@pytest.mark.usefixtures("little_memory")
def test_episodes_that_do_not_fit_together_are_refused_before_any_is_stacked() -> None:
    episode = EpisodeArrays(
        name="episode 0",
        observations=np.zeros((101, 10), np.float32),
        actions=np.zeros((100, 3), np.int8),
        rewards=np.zeros(100, np.float32),
        terminated=True,
    )
    assert len(stack_episodes([episode] * 19, [100] * 19, [2, 2, 2]).rewards) == 1900
    with pytest.raises(InvalidDatasetError, match="20000 transitions with 10 features would take"):
        stack_episodes([episode] * 200, [100] * 200, [2, 2, 2])


def test_the_number_of_episodes_is_compared_with_memory_before_minari_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata: dict[str, Any] = {"observation_space": "", "action_space": "", "total_episodes": 9e9}
    monkeypatch.setattr(MinariStorage, "read_raw_metadata", lambda _: metadata)
    monkeypatch.setattr(environments, "MinariDataset", lambda _: pytest.fail("it was listed"))
    monkeypatch.setattr(untrusted, "available_memory", lambda: AVAILABLE)
    with pytest.raises(InvalidDatasetError, match=r"72,000,000,000 bytes .* 1,000,000 are avail"):
        environments.open_minari(tmp_path)
    (tmp_path / environments.HDF5_FILE).write_bytes(bytes(5000))
    with pytest.raises(InvalidDatasetError, match="its file of 5000 bytes cannot hold"):
        environments.open_minari(tmp_path)


def sparse(path: Path, size: int) -> Path:
    """Makes a file of zeros that takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.usefixtures("little_memory")
def test_sparse_files_larger_than_memory_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpointError, match=r"4,000,000 bytes .* 1,000,000 are avail"):
        read_checkpoint(sparse(tmp_path / "training_1.ckpt", 2_000_000))
    policy = sparse(tmp_path / "policy.safetensors", 2_000_000)
    with (
        pytest.raises(InvalidCheckpointError, match="2,000,000 bytes"),
        untrusted.open_untrusted(policy, "policy", "", untrusted.MAX_BYTES),
    ):
        pass
    published = sparse(tmp_path / "cheetah-run.pkl", 2_000_000)
    with pytest.raises(InvalidDatasetError, match="2,000,000 bytes"):
        importer._read_transitions(published, 17, 6)
