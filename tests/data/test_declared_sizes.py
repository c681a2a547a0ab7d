"""Sizes that a file declares are compared with what it stores, before memory is taken."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from spin_d3rlpy.data import sources
from spin_d3rlpy.errors import InvalidDatasetError


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
    storage = SimpleNamespace(data_path=tmp_path)
    dataset: Any = SimpleNamespace(id="x-v0", storage=storage, episode_indices=range(10**8))
    with pytest.raises(InvalidDatasetError, match="declares 100000000 episodes"):
        sources._check_episode_count(dataset)
