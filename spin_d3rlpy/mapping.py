"""Arrays in files instead of in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike, folder: str | Path) -> NDArray[Any]:
    """Returns a new array in an unnamed file that disappears with the array or the process."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping keeps it when it is closed
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk is found out later
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    except OSError as error:
        raise OSError(
            error.errno, f"{size / 2**30:.1f} GiB are needed in {folder}: {error.strerror}"
        ) from error
