"""Folder locks that end with the process and leave no file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spin_d3rlpy.errors import FolderInUseError


@contextmanager
def exclusive_folder(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Holds an existing folder's lock in the block; waits for it, or raises FolderInUseError.

    Yields False where locks do not exist (Windows, some network file systems).
    """
    descriptor = None
    try:
        try:
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        except BlockingIOError as error:
            raise FolderInUseError(
                f"Another run is using {folder}. Wait until it has ended, or choose another folder."
            ) from error
        except (ImportError, OSError):
            locked = False
        yield locked
    finally:
        if descriptor is not None:
            os.close(descriptor)
