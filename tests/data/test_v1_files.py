"""Files of d3rlpy 1.x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import FactoredBC
from spin_d3rlpy.data import as_device_buffer
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from tests.algos.problems import new_algorithm, tiny_fields

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
N = 30
RNG = np.random.default_rng(0)
ARRAYS = {
    "observations": RNG.normal(size=(N, 4)).astype(np.float32),
    "actions": RNG.integers([3, 2], size=(N, 2)).astype(np.int32),
    "rewards": RNG.normal(size=N).astype(np.float32),
    "terminals": (np.arange(N) % 10 == 9).astype(np.float32),
}


def write(path: Path, **changes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in {**ARRAYS, **changes}.items():
            if array is not None:
                file[name] = array
        file["discrete_action"], file["version"] = True, "1.0"
    return path


@pytest.mark.parametrize("as_text", [False, True])
def test_a_file_of_version_1_is_read_and_trained_on(as_text: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "log.h5")
    given = str(path) if as_text else path
    buffer = as_device_buffer(given, [3, 2])
    assert buffer.size() == 3
    np.testing.assert_array_equal(buffer.actions.numpy(), ARRAYS["actions"])
    np.testing.assert_array_equal(buffer.rewards.numpy(), ARRAYS["rewards"])
    states = buffer.observations[buffer.observation_index].numpy()
    np.testing.assert_array_equal(states, ARRAYS["observations"])
    algo = new_algorithm(FactoredBC, **tiny_fields(FactoredBC), nvec=[3, 2])
    algo.fit(given, n_steps=2, **QUIET)
    assert algo.predict(ARRAYS["observations"]).shape == (N, 2)


def test_episodes_that_were_cut_off_end_where_the_file_says(tmp_path: Path) -> None:
    ends = np.arange(N) % 5 == 4
    path = write(tmp_path / "log.hdf5", episode_terminals=ends.astype(np.float32))
    buffer = as_device_buffer(path, [3, 2])
    assert buffer.size() == 6
    assert buffer.terminals.sum() == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": None}, "d3rlpy 1.x with arrays"),
        ({"rewards": ARRAYS["rewards"][:-1]}, "cannot be read|Expected"),
        ({"observations": np.zeros((N, 4), np.float32) * np.nan}, "finite|NaN|nan"),
        ({"actions": ARRAYS["actions"] - 1}, "Slot"),
    ],
)
def test_other_files_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log.h5", **changes)
    with pytest.raises(InvalidDatasetError, match=message):
        as_device_buffer(path, [3, 2])


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no file"):
        as_device_buffer(tmp_path / "log.h5", [3, 2])
    (tmp_path / "log.h5").write_text("text")
    with pytest.raises(InvalidDatasetError, match="cannot be read"):
        as_device_buffer(tmp_path / "log.h5", [3, 2])
