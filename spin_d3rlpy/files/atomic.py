"""Atomic writing of files: the one way in which this package writes any file of its own.

Writers in C++ or Rust, which may end the process on a full disk, make bytes in memory first.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spin_d3rlpy.errors import FileWriteError


def write_bytes(path: str | Path, content: bytes | bytearray | memoryview) -> None:
    """Atomically writes a file; raises FileWriteError."""
    with write_errors(path), atomic_write(path) as partial:
        partial.write_bytes(content)


def write_text(path: str | Path, text: str) -> None:
    """Atomically writes a text in UTF-8; raises FileWriteError."""
    write_bytes(path, text.encode())


@contextmanager
def atomic_write(path: str | Path, suffix: str = "") -> Iterator[Path]:
    """Yields a temporary path that replaces `path` atomically when the block ends.

    After a kill, an error or a power loss, `path` is either the old file or the new one. A kill
    leaves the temporary file; the next process that writes `path` on that machine removes it.

    Args:
        path: the file.
        suffix: added to the temporary name, for writers that choose a format by it.

    Raises:
        FileWriteError: the whole file cannot take its place. Errors within the block stay as they
            are, as not all come from writing: see `write_errors`.
    """
    path = Path(path)
    partial = partial_path(path, suffix)
    _remove_leftovers(path)
    try:
        yield partial
        with write_errors(path):
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # what the block raised is the cause
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields a new temporary folder that takes the place `path` when the block ends.

    After an error or a kill there is no folder `path`. A kill leaves the temporary one; the next
    process that writes `path` on that machine removes it.

    Args:
        path: the folder; it does not exist, or is empty.

    Raises:
        FileWriteError: the folder cannot be made, or cannot take its place, for instance because
            another process was first. Errors within the block stay as they are.
    """
    path = Path(path)
    partial = partial_path(path)
    _remove_leftovers(path)
    try:
        with write_errors(path):
            partial.mkdir()
        yield partial
        with write_errors(path):
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # what the block raised is the cause


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Context of writing `path`, in which each OSError becomes a FileWriteError with its name."""
    try:
        yield
    except FileWriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        before = "The file that was there is intact. " if os.path.isfile(path) else ""
        failure = FileWriteError(
            f"{path} could not be written ({reason}). {before}Free space, make the folder "
            "writable, or choose another place."
        )
        failure.errno = error.errno
        raise failure from error


def partial_path(path: Path, suffix: str = "") -> Path:
    """Returns the temporary path under which this process writes `path`.

    It names the machine, because process ids mean nothing on another one that shares the folder.
    """
    return path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.partial{suffix}")


def _remove_leftovers(path: Path) -> None:
    """Removes what processes of this machine that have ended left of writing `path`."""
    own = rf"\.{re.escape(path.name)}\.{re.escape(_machine())}"
    written = re.compile(rf"{own}\.(\d+)\.partial(\.\w+)?")
    with contextlib.suppress(OSError):  # a folder that cannot be read is reported when writing
        for entry in os.listdir(path.parent):
            match = written.fullmatch(entry)
            if match and not _is_running(int(match[1])):
                left = path.with_name(entry)
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink(missing_ok=True)


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
