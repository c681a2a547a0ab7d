"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` atomically when the block ends.

    After a kill, an error or a power loss, `path` is either the old file or the new one. A kill
    leaves the temporary file; the next process that writes `path` on that machine removes it.
    """
    partial = partial_path(path)
    _remove_leftovers(path)
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Returns the temporary path under which this process writes `path`.

    It names the machine, because process ids mean nothing on another one that shares the folder.
    """
    return path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.partial")


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files for `path` of processes of this machine that have ended."""
    written = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_machine())}\.(\d+)\.partial")
    with contextlib.suppress(OSError):  # a folder that cannot be read is reported when writing
        for entry in os.listdir(path.parent):
            match = written.fullmatch(entry)
            if match and not _is_running(int(match[1])):
                path.with_name(entry).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where os.kill ends the process, whatever the signal
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or no process id at all
        return True
    return True


def _machine() -> str:
    return re.sub(r"[^\w-]", "_", platform.node()) or "unknown"
