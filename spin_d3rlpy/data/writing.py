"""Writing a dataset's files, in a separate process."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from numpy.typing import NDArray

from spin_d3rlpy.data.staging import Staging, write_error
from spin_d3rlpy.data.workers import Workers
from spin_envs import reference_scores
from spin_envs.tasks import BenchmarkTask

_EPISODES_PER_WRITE = 100


def dataset_bytes(dataset: MinariDataset) -> int:
    """Returns the size of a dataset's files."""
    return sum(p.stat().st_size for p in dataset.storage.data_path.rglob("*") if p.is_file())


class Checksum:
    """SHA-256 of a dataset's episodes in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *arrays: NDArray[Any]) -> None:
        """Adds an episode's observations, actions, rewards and terminations as stored."""
        for array in arrays:
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
) -> EpisodeBuffer:
    """Returns an episode of T steps in Minari's form, truncated unless terminated."""
    flags = np.zeros((2, len(rewards)), dtype=bool)
    flags[0 if terminated else 1, -1] = True
    return EpisodeBuffer(
        seed=seed,
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=flags[0],
        truncations=flags[1],
        infos={},
    )


class DatasetWriter:
    """Writes a dataset's episodes, then its record.

    A separate process writes, because the HDF5 library can crash its process on a full disk.
    """

    def __init__(
        self,
        staging: Staging,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        env_spec: EnvSpec | None,
    ) -> None:
        self._staging = staging
        self._storage = MinariStorage.new(
            staging.data,
            observation_space=observation_space,
            action_space=action_space,
            env_spec=env_spec,
            data_format="hdf5",
        )
        # HDF5 prints thousands of lines when a disk is full.
        self._workers = Workers(1, quiet=True)
        self._returns: list[float] = []
        self._checksum = Checksum()

    def add(self, episodes: Iterable[EpisodeBuffer]) -> None:
        """Appends episodes, a few at a time, or raises DatasetWriteError."""
        remaining = iter(episodes)
        while batch := list(itertools.islice(remaining, _EPISODES_PER_WRITE)):
            request = {"folder": self._staging.data, "episodes": batch}
            try:
                self._workers.submit("write", request).result()
            except (OSError, RuntimeError) as error:  # h5py raises both
                number = getattr(error, "errno", None)
                reason = os.strerror(number) if number else str(error).rstrip(".")
                raise write_error(self._staging.data.parent.parent, reason) from error
            for e in batch:
                self._checksum.add(e.observations, e.actions, e.rewards, e.terminations)
                self._returns.append(float(np.sum(e.rewards, dtype=np.float64)))

    def finish(self, metadata: dict[str, Any]) -> None:
        self._storage.update_metadata(
            {"minari_version": minari.__version__, "returns": return_statistics(self._returns)}
            | metadata
            | {"checksum": str(self._checksum)}
        )

    def close(self) -> None:
        self._workers.close()
