"""Atomic building of datasets from behavior policies."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import time
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from spin_d3rlpy._version import __version__
from spin_d3rlpy.data.collect import CHUNK_EPISODES, Chunk
from spin_d3rlpy.data.episodes import action_dtype
from spin_d3rlpy.data.specs import LEVELS, DatasetPart, DatasetSpec, PolicyKind
from spin_d3rlpy.data.staging import PlayedChunks, Staging, staged_dataset
from spin_d3rlpy.data.workers import default_jobs, play_chunks, worker_arithmetic
from spin_d3rlpy.data.writing import (
    DatasetWriter,
    episode_buffer,
    recorded_scores,
    return_statistics,
)
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.progress import progress_bar
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy
from spin_envs.rollout import EpisodeRecord
from spin_envs.scripted import ScriptedPolicy

Policies: TypeAlias = Mapping[PolicyKind, BehaviorPolicy | ScriptedPolicy]


def build_dataset(spec: DatasetSpec, *, jobs: int | None = None, progress: bool = True) -> None:
    """Builds a dataset in Minari's local folder, unless it exists.

    The data depend on the name and the recorded provenance: policies, versions of simulator and
    NumPy, C library and BLAS kernel (one for all x86-64 processors with AVX2), not on `jobs`.
    Building is atomic, resumes after the last chunk of episodes, and is done by one process at a
    time where files can be locked. Until it is done, the disk holds the data twice.

    Args:
        spec: the dataset.
        jobs: number of processes; all CPU cores if None.
        progress: draw a progress bar.

    Raises:
        ValueError: `jobs` is less than 1.
        MissingDependencyError: the environment's simulator is not installed.
        DatasetWriteError: the disk is full; played episodes are kept if they fit.
    """
    jobs = default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"Expected jobs to be at least 1, got {jobs}.")
    with staged_dataset(spec.name) as staging:
        if staging is None:
            return
        kinds = LEVELS[spec.level][1].keys()
        if missing := [kind for kind in kinds if kind not in {part.kind for part in spec.parts}]:
            warnings.warn(
                f"{spec.name} is too small for its level: it would have no data of "
                f"{', '.join(missing)}. Take size={len(kinds) * 1000} or more for some of each.",
                UserWarning,
                stacklevel=2,
            )
        _write_dataset(spec, staging, jobs, progress)


def _write_dataset(spec: DatasetSpec, staging: Staging, jobs: int, progress: bool) -> None:
    started = time.monotonic()
    policies = {kind: load_behavior_policy(name) for kind, name in spec.policy_names().items()}
    with closing(gymnasium.make(spec.task.env_id, **spec.task.env_kwargs)) as env:
        made_with = _made_with(spec, policies)
        parts = [_Part(part) for part in spec.parts]
        key = hashlib.sha256(json.dumps([made_with, CHUNK_EPISODES]).encode()).hexdigest()[:16]
        played = PlayedChunks(spec.name, key, staging)
        dtype = action_dtype(nvec_from_space(env.action_space))
        writer = DatasetWriter(staging, env.observation_space, env.action_space, env.spec)
    bar = progress_bar(f"Building {spec.name}", "step", progress, total=spec.size)
    chunks = _chunks(spec, parts, policies)
    with closing(writer), bar, closing(_episodes(chunks, played, jobs)) as played_chunks:
        for episodes in played_chunks:
            part = next(p for p in parts if episodes[0].seed in p.wanted.seeds)
            wanted = [e for e in episodes if part.take(e)]
            writer.add(
                episode_buffer(
                    e.observations,
                    e.actions.astype(dtype),
                    e.rewards.astype(np.float32),
                    e.terminated,
                    e.seed,
                )
                for e in wanted
            )
            bar.update(sum(len(e.rewards) for e in wanted))
    metadata = _metadata(spec, policies, parts, made_with)
    writer.finish({**metadata, "build_seconds": round(time.monotonic() - started, 2)})
    played.remove()


def _made_with(spec: DatasetSpec, policies: Policies) -> dict[str, Any]:
    """Everything that a dataset's data depend on, in addition to its name."""
    simulator = ("mujoco", "dm_control") if spec.task.needs_simulator else ()
    packages = (*simulator, "numpy", "gymnasium", "minari")
    versions = {package: importlib.metadata.version(package) for package in packages}
    return {
        "versions": {"spin-d3rlpy": __version__, **versions},
        "policies": {kind: policy.digest() for kind, policy in policies.items()},
        "platform": worker_arithmetic(),
    }


class _Part:
    """Progress of one part of a dataset."""

    def __init__(self, wanted: DatasetPart) -> None:
        self.wanted = wanted
        self.n_transitions = 0
        self.returns: list[float] = []

    @property
    def complete(self) -> bool:
        return self.n_transitions >= self.wanted.n_transitions

    def take(self, episode: EpisodeRecord) -> bool:
        """Counts an episode and returns True, unless the part is complete."""
        if self.complete:
            return False
        self.n_transitions += len(episode.rewards)
        self.returns.append(float(episode.rewards.astype(np.float32).sum(dtype=np.float64)))
        return True


def _chunks(spec: DatasetSpec, parts: list[_Part], policies: Policies) -> Iterator[Chunk]:
    """Yields chunks of each part until it is complete; workers are a few chunks ahead."""
    for part in parts:
        seeds, policy = part.wanted.seeds, policies.get(part.wanted.kind)
        for start in range(0, len(seeds), CHUNK_EPISODES):
            if part.complete:
                break
            chosen = seeds[start : start + CHUNK_EPISODES]
            yield Chunk(spec.task.env_id, spec.task.env_kwargs, policy, chosen)


def _episodes(
    chunks: Iterator[Chunk], played: PlayedChunks, jobs: int
) -> Generator[list[EpisodeRecord]]:
    """Yields the episodes of chunks, new or from a stopped build."""
    for chunk in chunks:
        before = played.load(chunk.seeds)
        if before is None:
            break
        yield before
    else:
        return
    with closing(play_chunks(itertools.chain([chunk], chunks), jobs)) as rest:
        for episodes in rest:
            played.save(episodes)
            yield episodes


def _metadata(
    spec: DatasetSpec, policies: Policies, parts: list[_Part], made_with: dict[str, Any]
) -> dict[str, Any]:
    names = spec.policy_names()
    arguments = ", ".join(f"{k}={v}" for k, v in spec.task.env_kwargs.items())
    counts = ", ".join(f"{len(part.returns)} {part.wanted.kind}" for part in parts)
    algorithms = sorted({_algorithm(policy.record) for policy in policies.values()})
    if any(part.wanted.kind == "random" for part in parts):
        algorithms.append("uniformly random")
    return {
        "dataset_id": spec.name,
        "algorithm_name": ", ".join(algorithms),
        "author": {"The spin-d3rlpy developers"},
        "description": f"Episodes of {spec.task.env_id} ({arguments}): {counts}, in this order. "
        "Episode i of a part was reset with seed first_seed + i.",
        "requirements": ["spin-d3rlpy"],
        **recorded_scores(spec.task),
        "composition": [
            {
                "policy": part.wanted.kind,
                "episodes": len(part.returns),
                "transitions": part.n_transitions,
                "first_seed": part.wanted.first_seed,
                "returns": return_statistics(part.returns),
            }
            for part in parts
        ],
        "provenance": {
            **made_with,
            "policies": {
                kind: {"name": names[kind], "sha256": made_with["policies"][kind], **p.record}
                for kind, p in policies.items()
            },
        },
    }


def _algorithm(record: Mapping[str, Any]) -> str:
    if "rule" in record:
        return str(record["algorithm"])
    return f"{record['algorithm']} ({'mean' if 'learned_bins' in record else 'greedy'})"
