"""Datasets in the HDF5 files of d3rlpy 1.x."""

from __future__ import annotations

from pathlib import Path

import h5py
from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer
from d3rlpy.dataset.io import load_v1

from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from spin_d3rlpy.files.untrusted import require_memory

SUFFIXES = (".h5", ".hdf5")
_ARRAYS = ("observations", "actions", "rewards", "terminals")
_COPIES = 3  # of the arrays, at most, while episodes are made of them
_ADVICE = "Free memory, or check whether the file is damaged."


def is_v1_file(dataset: object) -> bool:
    """Whether a dataset is given as the path of such a file."""
    return isinstance(dataset, str | Path) and Path(dataset).suffix in SUFFIXES


def read_v1(path: str | Path) -> ReplayBuffer:
    """Reads a file that `MDPDataset.dump` of d3rlpy 1.x wrote.

    Raises:
        DatasetNotFoundError: there is no such file.
        InvalidDatasetError: it is of another kind, damaged or too large for the memory.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DatasetNotFoundError(f"There is no file {file}.")
    try:
        with h5py.File(file, "r") as content:
            missing = [name for name in _ARRAYS if not isinstance(content.get(name), h5py.Dataset)]
            if missing:
                raise InvalidDatasetError(
                    f"Expected {file} to be a dataset of d3rlpy 1.x with arrays "
                    f"{', '.join(_ARRAYS)}, it has {', '.join(sorted(content))[:200] or 'none'}. "
                    "Minari's datasets are opened by their folder."
                )
            needed = _COPIES * sum(content[name].nbytes for name in _ARRAYS)
        require_memory(needed, f"Reading {file}", _ADVICE, InvalidDatasetError)
        with file.open("rb") as opened:
            episodes = load_v1(opened)
    except (OSError, ValueError, TypeError, KeyError, AssertionError, RuntimeError) as error:
        if isinstance(error, InvalidDatasetError):
            raise
        raise InvalidDatasetError(f"{file} cannot be read ({error!r:.300}).") from error
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes)
