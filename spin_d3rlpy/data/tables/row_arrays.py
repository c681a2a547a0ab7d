"""Where arrays with an entry for each row of a table are: in memory, or in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.episodes import mapped_array
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.files.atomic import write_errors
from spin_d3rlpy.files.untrusted import require_memory
from spin_d3rlpy.training.progress import progress_bar

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


class RowArrays:
    """Arrays in memory, made without a progress bar."""

    def states(self, rows: int, features: int) -> NDArray[np.float32]:
        """Returns an array `(rows, features)` that is filled column by column.

        Raises:
            InvalidDatasetError: memory has no room.
        """
        require_memory(
            4 * rows * features,
            f"{rows:,} states of {features} features",
            "Read fewer rows or columns, or pass memory_map= a folder.",
            InvalidDatasetError,
        )
        return np.empty((rows, features), np.float32)

    def kept(self, array: NDArray[Scalar]) -> NDArray[Scalar]:
        """Returns an array that is needed for longer than a column."""
        return array

    def watched(self, label: str, work: Sequence[T], unit: str = "columns") -> Iterable[T]:
        """Returns pieces of work, of which a bar shows how many are done."""
        return work


class MappedArrays(RowArrays):
    """Arrays in unnamed files that disappear with them, made with a progress bar.

    Args:
        folder: with room for them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def states(self, rows: int, features: int) -> NDArray[np.float32]:
        """Returns an array `(rows, features)` whose columns are contiguous in its file.

        Raises:
            FileWriteError: the folder has no room.
        """
        with write_errors(self._folder):
            columns: NDArray[np.float32] = mapped_array((features, rows), np.float32, self._folder)
        return columns.T

    def kept(self, array: NDArray[Scalar]) -> NDArray[Scalar]:
        """Returns a copy in a file.

        Raises:
            FileWriteError: the folder has no room.
        """
        if not array.size:  # an empty file cannot be mapped
            return array
        with write_errors(self._folder):
            mapped: NDArray[Scalar] = mapped_array(array.shape, array.dtype, self._folder)
        mapped[...] = array
        return mapped

    def watched(self, label: str, work: Sequence[T], unit: str = "columns") -> Iterator[T]:
        with progress_bar(label, unit, total=len(work)) as bar:
            for piece in work:
                yield piece
                bar.update()
