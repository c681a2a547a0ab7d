"""The C library's settings for large arrays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

from spin_d3rlpy.fast.switch import is_on


def keep_freed_memory() -> None:
    """Has the C library keep freed memory for the next allocation instead of returning it.

    A training step allocates and frees the same arrays over and over. glibc gives larger ones
    back to the system each time, and touching new pages again took up to half of a step on a CPU
    (torch 2.13 has no allocator of its own there).

    This holds for the whole process, also for what else runs in it, until it ends: the process
    stays as large as it once was. `SPIN_D3RLPY_MALLOC=0` in the environment leaves the settings
    alone. Without glibc this does nothing.
    """
    if is_on() and os.environ.get("SPIN_D3RLPY_MALLOC") != "0":
        _set_thresholds()


@functools.cache
def _set_thresholds() -> None:
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the largest value that glibc accepts
        mallopt(trim_threshold, 2**31 - 1)
