"""Atomic creation of datasets, and resumable builds."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from minari.storage import get_dataset_path

from spin_d3rlpy.atomic import atomic_write
from spin_d3rlpy.errors import DatasetWriteError, SpinError
from spin_d3rlpy.locks import exclusive_folder
from spin_envs.rollout import EpisodeRecord

# (Windows has no EDQUOT.)
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def is_complete(name: str) -> bool:
    """Whether Minari's local folder holds a dataset of this name."""
    return Path(get_dataset_path(name), "data", "metadata.json").exists()


@dataclasses.dataclass
class Staging:
    """Temporary place of a dataset that is being written."""

    data: Path  # does not exist yet; becomes the dataset's folder `data`
    exclusive: bool  # whether no other process can be at work on a dataset of this name


def write_error(folder: Path, reason: str) -> DatasetWriteError:
    """Returns the error for a failed write to an existing folder."""
    free = shutil.disk_usage(folder).free
    return DatasetWriteError(
        f"A dataset could not be written to {folder} ({reason}). It has {free:,} bytes free. "
        "Free some, or set MINARI_DATASETS_PATH to a folder with more."
    )


@contextmanager
def explained_full_disk(folder: Path) -> Iterator[None]:
    """Turns errors about a full disk into `DatasetWriteError`, with its name and free space."""
    try:
        yield
    except SpinError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in _FULL:
                raise write_error(folder, str(cause)) from error
            cause = cause.__cause__ or cause.__context__
        raise


@contextmanager
def staged_dataset(name: str) -> Iterator[Staging | None]:
    """Yields a place that becomes the dataset `name` if the block succeeds; None if that exists.

    On an error nothing remains. A second process waits for the first.
    """
    target = get_dataset_path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.staging-"
    with exclusive_folder(target.parent) as exclusive:
        if exclusive:  # what is there is of a process that was killed
            for leftover in target.parent.glob(f"{prefix}*"):
                shutil.rmtree(leftover)
        if is_complete(name):
            yield None
            return
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            # mkdtemp's folders are private; datasets are as readable as any other folder here.
            staging.chmod(target.parent.stat().st_mode)
            with explained_full_disk(target.parent):
                yield Staging(staging / "data", exclusive)
            try:
                os.replace(staging, target)
            except OSError:
                if not is_complete(name):
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)


class PlayedChunks:
    """Chunks of episodes on disk, stored next to the dataset that they build.

    They survive an interrupted build for the next one of the same name and key (of everything that
    the episodes depend on); chunks of other keys are removed. Where another process may build the
    same dataset they do not survive.
    """

    def __init__(self, name: str, key: str, staging: Staging) -> None:
        target = Path(get_dataset_path(name))
        prefix = f".{target.name}.chunks-"
        self._folder = staging.data.with_name("chunks")
        if staging.exclusive:
            self._folder = target.parent / f"{prefix}{key}"
            for other in target.parent.glob(f"{prefix}*"):
                if other != self._folder:
                    shutil.rmtree(other)
        self._folder.mkdir(exist_ok=True)

    def load(self, seeds: range) -> list[EpisodeRecord] | None:
        """Returns the episodes of the chunk with these seeds, or None."""
        try:
            # Opened here because np.load leaves a damaged file open.
            with self._path(seeds).open("rb") as raw, np.load(raw) as file:
                arrays = dict(file)
        # What a machine that lost power left is read as if it were not there.
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return [
            EpisodeRecord(
                seed,
                arrays[f"{seed}.observations"],
                arrays[f"{seed}.actions"],
                arrays[f"{seed}.rewards"],
                bool(arrays[f"{seed}.terminated"]),
            )
            for seed in seeds
        ]

    def save(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Atomically writes a chunk's episodes."""
        path = self._path(range(episodes[0].seed, episodes[0].seed + len(episodes)))
        with atomic_write(path) as partial, partial.open("wb") as file:
            np.savez(file, **{f"{e.seed}.{k}": v for e in episodes for k, v in vars(e).items()})

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, seeds: range) -> Path:
        return self._folder / f"{seeds[0]}-{len(seeds)}.npz"
