"""Atomic creation and writing of datasets, and resumable builds."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import itertools
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.masks import BITS_KEY, Bits
from spin_d3rlpy.data.minari.workers import WorkerEndedError, Workers
from spin_d3rlpy.errors import DatasetWriteError
from spin_d3rlpy.files.atomic import atomic_write, write_errors
from spin_d3rlpy.files.locks import exclusive_folder
from spin_envs import reference_scores
from spin_envs.rollout import EpisodeRecord
from spin_envs.tasks import BenchmarkTask

_EPISODES_PER_WRITE = 100
_PROBE_BYTES = 2**20
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


def free_bytes(folder: Path) -> int:
    """Returns the free space of the disk that holds an existing folder."""
    return shutil.disk_usage(folder).free


def write_error(folder: Path, reason: str) -> DatasetWriteError:
    """Returns the error for a failed write to an existing folder."""
    return DatasetWriteError(
        f"A dataset could not be written to {folder} ({reason}). It has {free_bytes(folder):,} "
        "bytes free. Free some, or set MINARI_DATASETS_PATH to a folder with more."
    )


def _reason(error: Exception, data: Path, batch: Sequence[EpisodeBuffer]) -> str:
    """Says why a batch could not be written to a folder, which is of no use afterwards."""
    number = getattr(error, "errno", None)
    if number:
        return os.strerror(number)
    text = str(error).rstrip(".")
    # HDF5 ends its process on a full disk, or raises an error without a number. Whether the disk is
    # full shows when as many bytes are added to the same file in another way.
    if failure := _append_error(data, sum(_bytes_of(e) for e in batch)):
        return f"{failure.strerror}: {text}" if failure.strerror else text
    if isinstance(error, WorkerEndedError):
        return f"{text}. The disk has room for the data: look for a lack of memory"
    return text


def _append_error(data: Path, n_bytes: int) -> OSError | None:
    """Returns the error when so much is added to the folder's largest file, if there is one."""
    files = [path for path in data.rglob("*") if path.is_file()]
    path = max(files, key=lambda file: file.stat().st_size, default=data / "probe")
    block = bytes(_PROBE_BYTES)
    try:
        with path.open("ab", buffering=0) as file:
            for start in range(0, max(n_bytes, 1), len(block)):
                wanted = min(len(block), max(n_bytes, 1) - start)
                written = 0
                while written < wanted:  # a nearly full disk takes a part of a block
                    written += file.write(block[: wanted - written])
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def _bytes_of(episode: EpisodeBuffer) -> int:
    arrays = (*_arrays_in(episode.observations), episode.actions, episode.rewards)
    return sum(np.asarray(array).nbytes for array in arrays)


def _arrays_in(observations: Any) -> list[NDArray[Any]]:
    """Returns the arrays of an episode's observations, which may be nested."""
    if isinstance(observations, Mapping):
        observations = tuple(observations.values())
    if isinstance(observations, tuple):
        return [array for inner in observations for array in _arrays_in(inner)]
    return [np.asarray(observations)]


@contextmanager
def explained_full_disk(folder: Path) -> Iterator[None]:
    """Turns errors about a full disk into `DatasetWriteError`, with its name and free space."""
    try:
        yield
    except DatasetWriteError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in _FULL:
                raise write_error(folder, os.strerror(cause.errno or 0)) from error
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
    """Chunks of episodes on disk, next to the dataset that they build, to resume a stopped build.

    That must have the same name and `key`, of all that the episodes depend on; chunks of other keys
    are removed. Where another process may build the same dataset, they do not survive.
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
        with write_errors(path), atomic_write(path) as partial, partial.open("wb") as file:
            np.savez(file, **{f"{e.seed}.{k}": v for e in episodes for k, v in vars(e).items()})

    def stored_bytes(self) -> int:
        """Returns the size of the chunks on disk."""
        return sum(path.stat().st_size for path in self._folder.glob("*.npz"))

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, seeds: range) -> Path:
        return self._folder / f"{seeds[0]}-{len(seeds)}.npz"


def dataset_bytes(dataset: MinariDataset) -> int:
    """Returns the size of a dataset's files."""
    return sum(p.stat().st_size for p in dataset.storage.data_path.rglob("*") if p.is_file())


class Checksum:
    """SHA-256 of a dataset's episodes in their order.

    Attributes:
        episodes: how many were added, as its user counts them.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.episodes = 0

    def add(self, *arrays: Any) -> None:
        """Adds an episode's observations, actions, rewards and terminations as stored."""
        for array in (inner for stored in arrays for inner in _arrays_in(stored)):
            self._hash.update(np.ascontiguousarray(array).data)

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def return_statistics(returns: Sequence[float]) -> dict[str, float]:
    """Returns mean, standard deviation, minimum and maximum of episodes' returns."""
    array = np.array(returns)
    with np.errstate(invalid="ignore"):  # infinite ones are reported where they are checked
        return {name: float(getattr(array, name)()) for name in ("mean", "std", "min", "max")}


def recorded_scores(task: BenchmarkTask) -> dict[str, float]:
    """Returns a task's reference scores under Minari's names; empty if unknown."""
    scores = reference_scores(task.env_id, **task.env_kwargs)
    return {} if scores is None else {"ref_min_score": scores[0], "ref_max_score": scores[1]}


def episode_buffer(
    observations: NDArray[Any],
    actions: NDArray[Any],
    rewards: NDArray[Any],
    terminated: bool,
    seed: int | None = None,
    masks: Bits | None = None,
    infos: dict[str, NDArray[Any]] | None = None,
) -> EpisodeBuffer:
    """Returns an episode of T steps in Minari's form, truncated unless terminated.

    Masks `(T + 1, bytes)` are among its infos, next to others `(T + 1, ...)`.
    """
    flags = np.zeros((2, len(rewards)), dtype=bool)
    flags[0 if terminated else 1, -1] = True
    return EpisodeBuffer(
        seed=seed,
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=flags[0],
        truncations=flags[1],
        infos={**({} if masks is None else {BITS_KEY: masks}), **(infos or {})},
    )


def write_episodes(
    staging: Staging,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    env_spec: EnvSpec | None,
    episodes: Iterable[EpisodeBuffer],
) -> MinariStorage:
    """Writes a dataset, with returns and checksum in its record, to which the caller adds the rest.

    A separate process writes, because the HDF5 library can crash its process on a full disk.

    Raises:
        DatasetWriteError: the disk has no room, or cannot be written.
    """
    # Minari 0.5.4 would store images as JPEG, which changes them.
    has_jpeg = "jpeg_encoding" in signature(MinariStorage.new).parameters
    exact: dict[str, Any] = {"jpeg_encoding": False} if has_jpeg else {}
    storage = MinariStorage.new(
        staging.data,
        observation_space=observation_space,
        action_space=action_space,
        env_spec=env_spec,
        data_format="hdf5",
        **exact,
    )
    returns, checksum, remaining = [], Checksum(), iter(episodes)
    # HDF5 prints thousands of lines when a disk is full.
    with closing(Workers(1, quiet=True)) as workers:
        while batch := list(itertools.islice(remaining, _EPISODES_PER_WRITE)):
            try:
                workers.submit("write", {"folder": staging.data, "episodes": batch}).result()
            except (OSError, RuntimeError) as error:  # h5py raises both
                reason = _reason(error, staging.data, batch)
                raise write_error(staging.data.parent.parent, reason) from error
            for e in batch:
                checksum.add(e.observations, e.actions, e.rewards, e.terminations)
                returns.append(float(np.sum(e.rewards, dtype=np.float64)))
    record = {"minari_version": minari.__version__, "returns": return_statistics(returns)}
    storage.update_metadata({**record, "checksum": str(checksum)})
    return storage
