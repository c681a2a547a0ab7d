"""Building a dataset from behavior policies, in full or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import os
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
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
from spin_d3rlpy.data.staging import PlayedChunks, Staging, staged_dataset
from spin_d3rlpy.data.workers import default_jobs, play_chunks, worker_arithmetic
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs import reference_scores
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy
from spin_envs.rollout import EpisodeRecord

RECORDED_VERSIONS = ("mujoco", "dm_control", "numpy", "gymnasium", "minari")


def build_dataset(spec: DatasetSpec, *, jobs: int | None = None, progress: bool = True) -> None:
    """Builds a dataset into Minari's local folder, unless it is there already.

    The data depend on the name and on what their provenance records: the policies, the versions of
    the simulator and NumPy, the C library, and which of its kernels NumPy's BLAS takes. That is the
    same one on all x86-64 processors with AVX2. They do not depend on `jobs`. A dataset of this
    name is always complete: one rename makes it one. Whatever stops a build, the next one of the
    same name resumes after the last chunk of episodes. If two processes want the same dataset, one
    of them builds it. (Where files cannot be locked, stopped builds start again and both build.)
    Until it is done, the disk holds its data twice.

    A checksum is kept beside the dataset. If the dataset is deleted and built again with the same
    versions and policies, and comes out different, a warning says so.

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
    with staged_dataset(spec.name) as staging:
        if staging is not None:
            _write_dataset(spec, staging, jobs, progress)


def _write_dataset(spec: DatasetSpec, staging: Staging, jobs: int, progress: bool) -> None:
    policies: dict[PolicyKind, BehaviorPolicy] = {
        kind: load_behavior_policy(name) for kind, name in spec.policy_names().items()
    }
    made_with = _made_with(policies)
    with closing(gymnasium.make(spec.task.env_id, **spec.task.env_kwargs)) as env:
        storage = MinariStorage.new(
            staging.data,
            observation_space=env.observation_space,
            action_space=env.action_space,
            env_spec=env.spec,
            data_format="hdf5",
        )
        dtype = action_dtype(nvec_from_space(env.action_space))
    parts = [_Part(part) for part in spec.parts]
    checksum = Checksum()
    build = _Build(spec, parts, policies, made_with, staging.exclusive)
    bar = tqdm(total=spec.size, desc=f"Building {spec.name}", unit="step", disable=not progress)
    with bar, closing(build.episodes(jobs)) as chunks:
        for episodes in chunks:
            part = next(p for p in parts if episodes[0].seed in p.wanted.seeds)
            buffers = [_to_minari(e, dtype) for e in episodes if part.take(e)]
            storage.update_episodes(buffers)
            for buffer in buffers:
                checksum.add(
                    buffer.observations, buffer.actions, buffer.rewards, buffer.terminations
                )
            bar.update(sum(len(buffer.rewards) for buffer in buffers))
    metadata = _metadata(spec, policies, parts, made_with)
    _compare_with_earlier(spec.name, made_with, str(checksum))
    storage.update_metadata(
        {**metadata, "checksum": str(checksum), "build_seconds": round(build.seconds, 2)}
    )
    build.forget()


class _Build:
    """Episodes of a dataset, played now or before the build was stopped.

    Args:
        spec: the dataset.
        parts: its parts; they say when they are complete.
        policies: by kind.
        made_with: see `_made_with`.
        exclusive: whether no other process builds the same; only then chunks are kept.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        parts: list[_Part],
        policies: dict[PolicyKind, BehaviorPolicy],
        made_with: dict[str, Any],
        exclusive: bool,
    ) -> None:
        self._chunks: Iterator[Chunk] = _chunks(spec, parts, policies)
        key = hashlib.sha256(json.dumps([made_with, CHUNK_EPISODES]).encode()).hexdigest()[:16]
        self._played = PlayedChunks(spec.name, key) if exclusive else None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long building has taken, all attempts together."""
        return time.monotonic() - self._started

    def episodes(self, jobs: int) -> Generator[list[EpisodeRecord]]:
        """Yields each chunk's episodes in order."""
        for chunk in self._chunks:
            before = self._played.load(chunk) if self._played else None
            if before is None:
                break
            episodes, seconds = before
            self._started = min(self._started, time.monotonic() - seconds)
            yield episodes
        else:
            return
        with closing(play_chunks(itertools.chain([chunk], self._chunks), jobs)) as chunks:
            for episodes in chunks:
                if self._played:
                    self._played.save(episodes, self.seconds)
                yield episodes

    def forget(self) -> None:
        """Frees what was kept for the next attempt."""
        if self._played:
            self._played.remove()


def _made_with(policies: dict[PolicyKind, BehaviorPolicy]) -> dict[str, Any]:
    """Everything that a dataset's data depend on, beside its name."""
    return {
        "versions": {
            "spin-d3rlpy": __version__,
            **{p: importlib.metadata.version(p) for p in RECORDED_VERSIONS},
        },
        "policies": {kind: policy.digest() for kind, policy in policies.items()},
        "platform": worker_arithmetic(),
    }


def _compare_with_earlier(name: str, made_with: dict[str, Any], checksum: str) -> None:
    """Warns if a dataset that was deleted comes back different, and remembers this one."""
    target = get_dataset_path(name)
    path = target.with_name(f".{target.name}.checksums.json")
    try:
        records = json.loads(path.read_text())
    except (OSError, ValueError):
        records = []
    earlier = [r["checksum"] for r in records if r["made_with"] == made_with]
    if not earlier:
        records.append({"made_with": made_with, "checksum": checksum})
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(records))
        os.replace(partial, path)
    elif earlier[0] != checksum:
        warnings.warn(
            f"{name} was built before with the same policies and versions, as {earlier[0]}, and "
            f"is now {checksum}. Results on the two may differ. Delete {path} to forget the first.",
            UserWarning,
            stacklevel=2,
        )


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
    made_with: dict[str, Any],
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
        "algorithm_name": ", ".join(
            sorted({_algorithm(p.record) for p in policies.values()})
            + (["uniformly random"] if "random" in {p["policy"] for p in composition} else [])
        ),
        "author": {"The spin-d3rlpy developers"},
        "description": (
            f"Episodes of {spec.task.env_id} ({arguments}): "
            + ", ".join(f"{p['episodes']} {p['policy']}" for p in composition)
            + ", in this order. Episode i of a part was reset with seed first_seed + i."
            + "".join(_shortfall(kind, p.record) for kind, p in policies.items())
        ),
        "requirements": ["spin-d3rlpy"],
        **({} if scores is None else {"ref_min_score": scores[0], "ref_max_score": scores[1]}),
        "composition": composition,
        "returns": return_statistics([r for part in parts for r in part.returns]),
        "provenance": {
            **made_with,
            "policies": {
                kind: {"name": names[kind], "sha256": made_with["policies"][kind], **p.record}
                for kind, p in policies.items()
            },
        },
    }


def _algorithm(record: Mapping[str, Any]) -> str:
    return f"{record['algorithm']} ({'mean' if 'learned_bins' in record else 'greedy'})"


def _shortfall(kind: PolicyKind, record: Mapping[str, Any]) -> str:
    """Returns a sentence, with a space before it, if the policy is far from what it should be."""
    mean, target = record["mean_return"], record["target_return"]
    if mean > 0.8 * target:
        return ""
    return f" Out of reach: the {kind} policy returns {mean:.1f}; it should return {target:.1f}."


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
