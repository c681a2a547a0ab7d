"""Asking for rows of a memory-mapped array together, so that a disk reads them at the same time.

Without this, a batch of random rows is read one after the other, each when it is first touched, and
with many pages around it that nobody needs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.fast.switch import is_on


def read_ahead(array: torch.Tensor, rows: torch.Tensor) -> None:
    """Begins to read rows `(R,)` of a mapped array, and does not wait for them.

    It is a hint: where the system knows none, rows are read when they are touched.
    """
    advise = _madvise()
    if advise is None or not is_on():
        return
    size = array[0].nbytes
    starts = array.data_ptr() + rows.cpu().numpy().astype(np.int64) * size
    for start, length in _ranges(starts, size):
        advise(start, length, mmap.MADV_WILLNEED)


def _ranges(starts: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Returns addresses and lengths of whole pages that hold `size` bytes at each of the starts."""
    first, last = starts // mmap.PAGESIZE, (starts + size - 1) // mmap.PAGESIZE
    between = [first + i for i in range(1, size // mmap.PAGESIZE + 1)]
    pages = np.unique(np.concatenate([first, last, *(np.minimum(p, last) for p in between)]))
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    begin = pages[np.concatenate([[0], cuts])]
    end = pages[np.concatenate([cuts, [len(pages)]]) - 1] + 1
    return list(
        zip((begin * mmap.PAGESIZE).tolist(), ((end - begin) * mmap.PAGESIZE).tolist(), strict=True)
    )


@functools.cache
def _madvise() -> Callable[[int, int, int], Any] | None:
    """Returns the system's function, which takes address, length and advice."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):
        return None
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    called: Callable[[int, int, int], Any] = advise
    return called
