"""Building a dataset from behavior policies, in full or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from numpy.typing import NDArray
from tqdm.auto import tqdm

from spin_d3rlpy._version import __version__
from spin_d3rlpy.data.collect import CHUNK_EPISODES, Chunk
from spin_d3rlpy.data.episodes import action_dtype
from spin_d3rlpy.data.specs import DatasetPart, DatasetSpec, PolicyKind
from spin_d3rlpy.data.workers import default_jobs, play_chunks
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs import reference_scores
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy
from spin_envs.rollout import EpisodeRecord

RECORDED_VERSIONS = ("mujoco", "dm_control", "numpy", "gymnasium", "minari")


def is_complete(name: str) -> bool:
    """Whether Minari's local folder holds a dataset of this name."""
    return Path(get_dataset_path(name), "data", "metadata.json").exists()


def build_dataset(spec: DatasetSpec, *, jobs: int | None = None, progress: bool = True) -> None:
    """Builds a dataset into Minari's local folder, unless it is there already.

    The data depend on the name and on the versions of the simulator and NumPy, not on `jobs`.
    Chunks of episodes go to a staging folder next to the final place as they are ready, and one
    rename makes them the dataset: whatever interrupts a build, a dataset of this name is complete.
    What a killed build left behind is removed by the next one of the same name. If two processes
    want the same dataset, one of them builds it.

    Args:
        spec: what to build.
        jobs: number of processes; as many as there are CPU cores if None.
        progress: draw a progress bar.

    Raises:
        ValueError: `jobs` is less than 1.
        MissingDependencyError: the environment's simulator is not installed.
    """
    jobs = default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"Expected jobs to be at least 1, got {jobs}.")
    with staged_dataset(spec.name) as folder:
        if folder is not None:
            _write_dataset(spec, folder, jobs, progress)


@contextmanager
def staged_dataset(name: str) -> Iterator[Path | None]:
    """Yields a folder that becomes the dataset `name` when the block ends without an error.

    Yields None if there is such a dataset. Otherwise nothing stays of what the block wrote.
    """
    target = get_dataset_path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.staging-"
    with _exclusive(target.parent) as exclusive:
        if is_complete(name):
            yield None
            return
        if exclusive:
            for leftover in target.parent.glob(f"{prefix}*"):
                shutil.rmtree(leftover)
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            # mkdtemp's folders are private; datasets are as readable as any other folder here.
            staging.chmod(target.parent.stat().st_mode)
            yield staging / "data"
            try:
                os.replace(staging, target)
            except OSError:
                if not is_complete(name):
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _exclusive(folder: Path) -> Iterator[bool]:
    """Waits until no other process builds in `folder`; yields False where locks do not exist.

    The lock is on the folder itself and ends with the process, so nothing is left behind.
    """
    descriptor = None
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        locked = True
    except (ImportError, OSError):  # Windows, some network file systems
        locked = False
    try:
        yield locked
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _write_dataset(spec: DatasetSpec, folder: Path, jobs: int, progress: bool) -> None:
    policies: dict[PolicyKind, BehaviorPolicy] = {
        kind: load_behavior_policy(name) for kind, name in spec.policy_names().items()
    }
    with closing(gymnasium.make(spec.task.env_id, **spec.task.env_kwargs)) as env:
        storage = MinariStorage.new(
            folder,
            observation_space=env.observation_space,
            action_space=env.action_space,
            env_spec=env.spec,
            data_format="hdf5",
        )
        dtype = action_dtype(nvec_from_space(env.action_space))
    parts = [_Part(part) for part in spec.parts]
    checksum = Checksum()
    bar = tqdm(total=spec.size, desc=f"Building {spec.name}", unit="step", disable=not progress)
    with bar, closing(play_chunks(_chunks(spec, parts, policies), jobs)) as chunks:
        for episodes in chunks:
            part = next(p for p in parts if episodes[0].seed in p.wanted.seeds)
            buffers = [_to_minari(e, dtype) for e in episodes if part.take(e)]
            storage.update_episodes(buffers)
            for buffer in buffers:
                checksum.add(
                    buffer.observations, buffer.actions, buffer.rewards, buffer.terminations
                )
            bar.update(sum(len(buffer.rewards) for buffer in buffers))
    storage.update_metadata(_metadata(spec, policies, parts, checksum))


class _Part:
    """What has been played of a part.

    Args:
        wanted: the part.
    """

    def __init__(self, wanted: DatasetPart) -> None:
        self.wanted = wanted
        self.n_transitions = 0
        self.returns: list[float] = []

    @property
    def complete(self) -> bool:
        return self.n_transitions >= self.wanted.n_transitions

    def take(self, episode: EpisodeRecord) -> bool:
        """Counts an episode in, unless the part is complete: returns whether it is wanted."""
        if self.complete:
            return False
        self.n_transitions += len(episode.rewards)
        self.returns.append(float(episode.rewards.astype(np.float32).sum(dtype=np.float64)))
        return True


def _chunks(
    spec: DatasetSpec, parts: list[_Part], policies: dict[PolicyKind, BehaviorPolicy]
) -> Iterator[Chunk]:
    """Yields chunks of each part until it is complete; workers are a few chunks ahead of that."""
    for part in parts:
        seeds, policy = part.wanted.seeds, policies.get(part.wanted.kind)
        for start in range(0, len(seeds), CHUNK_EPISODES):
            if part.complete:
                break
            chosen = seeds[start : start + CHUNK_EPISODES]
            yield Chunk(spec.task.env_id, spec.task.env_kwargs, policy, chosen)


def _to_minari(episode: EpisodeRecord, dtype: np.dtype[Any]) -> EpisodeBuffer:
    flags = np.zeros((2, len(episode.rewards)), dtype=bool)
    flags[0 if episode.terminated else 1, -1] = True
    return EpisodeBuffer(
        seed=episode.seed,
        observations=episode.observations,
        actions=episode.actions.astype(dtype),
        rewards=episode.rewards.astype(np.float32),
        terminations=flags[0],
        truncations=flags[1],
        infos={},
    )


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


def _metadata(
    spec: DatasetSpec,
    policies: dict[PolicyKind, BehaviorPolicy],
    parts: list[_Part],
    checksum: Checksum,
) -> dict[str, Any]:
    """What goes into the dataset's `metadata.json`, beside what Minari writes itself."""
    composition = [
        {
            "policy": part.wanted.kind,
            "episodes": len(part.returns),
            "transitions": part.n_transitions,
            "first_seed": part.wanted.first_seed,
            "returns": return_statistics(part.returns),
        }
        for part in parts
    ]
    scores = reference_scores(spec.task.env_id, **spec.task.env_kwargs)
    names = spec.policy_names()
    arguments = ", ".join(f"{k}={v}" for k, v in spec.task.env_kwargs.items())
    return {
        "dataset_id": spec.name,
        "minari_version": minari.__version__,
        "algorithm_name": "DecQN (greedy), uniformly random",
        "author": {"The spin-d3rlpy developers"},
        "description": (
            f"Episodes of {spec.task.env_id} ({arguments}): "
            + ", ".join(f"{p['episodes']} {p['policy']}" for p in composition)
            + ", in this order. Episode i of a part was reset with seed first_seed + i."
        ),
        "requirements": ["spin-d3rlpy"],
        **({} if scores is None else {"ref_min_score": scores[0], "ref_max_score": scores[1]}),
        "composition": composition,
        "returns": return_statistics([r for part in parts for r in part.returns]),
        "checksum": str(checksum),
        "provenance": {
            "versions": {
                "spin-d3rlpy": __version__,
                **{p: importlib.metadata.version(p) for p in RECORDED_VERSIONS},
            },
            "policies": {kind: {"name": names[kind], **p.record} for kind, p in policies.items()},
        },
    }


def return_statistics(returns: Sequence[float]) -> dict[str, float]:
    """Returns mean, standard deviation, minimum and maximum of episodes' returns."""
    array = np.array(returns)
    with np.errstate(invalid="ignore"):  # infinite ones are reported where they are checked
        return {
            "mean": float(array.mean()),
            "std": float(array.std()),
            "min": float(array.min()),
            "max": float(array.max()),
        }
