"""Atomic building of datasets from behavior policies."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import math
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from minari.data_collector import EpisodeBuffer

from spin_d3rlpy._version import __version__
from spin_d3rlpy.data.buffer.episodes import action_dtype
from spin_d3rlpy.data.minari.playing import CHUNK_EPISODES, Chunk
from spin_d3rlpy.data.minari.specs import LEVELS, DatasetPart, DatasetSpec, PolicyKind
from spin_d3rlpy.data.minari.staging import (
    PlayedChunks,
    Staging,
    episode_buffer,
    free_bytes,
    recorded_scores,
    return_statistics,
    staged_dataset,
    write_episodes,
    write_error,
)
from spin_d3rlpy.data.minari.workers import default_jobs, play_chunks, worker_arithmetic
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.training.progress import progress_bar
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy
from spin_envs.rollout import EpisodeRecord
from spin_envs.scripted import ScriptedPolicy

Policies: TypeAlias = Mapping[PolicyKind, BehaviorPolicy | ScriptedPolicy]

_PLAYED_BYTES = 8  # of a slot or reward in an episode that was played


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
        DatasetWriteError: the disk has less room than the data take, which is found out before
            anything is played, or it is full; played episodes are kept if they fit.
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
    env = gymnasium.make(spec.task.env_id, **spec.task.env_kwargs)
    env.close()
    made_with = _made_with(spec, policies)
    parts = [_Part(part) for part in spec.parts]
    key = hashlib.sha256(json.dumps([made_with, CHUNK_EPISODES]).encode()).hexdigest()[:16]
    played = PlayedChunks(spec.name, key, staging)
    _check_room(spec, env, staging, played)
    bar = progress_bar(f"Building {spec.name}", "step", progress, total=spec.size)
    chunks = _chunks(spec, parts, policies)
    with bar, closing(_episodes(chunks, played, jobs)) as played_chunks:
        dtype = action_dtype(nvec_from_space(env.action_space))
        episodes = _wanted(played_chunks, parts, dtype, bar)
        spaces = env.observation_space, env.action_space
        storage = write_episodes(staging, *spaces, env.spec, episodes)
    metadata = _metadata(spec, policies, parts, made_with)
    seconds = round(time.monotonic() - started, 2)
    storage.update_metadata({**metadata, "build_seconds": seconds})
    played.remove()


def build_bytes(spec: DatasetSpec, env: gymnasium.Env[Any, Any]) -> tuple[int, int]:
    """Returns the least bytes of a dataset's files, and of the played episodes kept meanwhile.

    Both count arrays only; files take a few per cent more, or several times as much where episodes
    have a dozen steps.
    """
    assert env.observation_space.shape is not None
    observation = 4 * math.prod(env.observation_space.shape)
    nvec = nvec_from_space(env.action_space)
    flags = 2  # terminations and truncations
    stored = observation + len(nvec) * action_dtype(nvec).itemsize + 4 + flags
    played = observation + (len(nvec) + 1) * _PLAYED_BYTES
    return spec.size * stored, spec.size * played


def _check_room(
    spec: DatasetSpec, env: gymnasium.Env[Any, Any], staging: Staging, played: PlayedChunks
) -> None:
    """Raises DatasetWriteError if the disk cannot hold the data."""
    stored, meanwhile = build_bytes(spec, env)
    needed = stored + max(0, meanwhile - played.stored_bytes())
    folder = staging.data.parent.parent
    if needed > free_bytes(folder):
        raise write_error(
            folder, f"{spec.name} takes at least {needed:,} bytes of it while it is built"
        )


def _wanted(
    chunks: Iterable[list[EpisodeRecord]], parts: list[_Part], dtype: np.dtype[Any], bar: Any
) -> Iterator[EpisodeBuffer]:
    """Yields episodes as they are stored, and counts them, until their part is complete."""
    for e in itertools.chain.from_iterable(chunks):
        part = next(part for part in parts if e.seed in part.wanted.seeds)
        if not part.complete:
            if part.wanted.is_cut:
                e = _first_steps(e, part.wanted.n_transitions - part.n_transitions)
            rewards = e.rewards.astype(np.float32)
            part.n_transitions += len(rewards)
            part.returns.append(float(rewards.sum(dtype=np.float64)))
            bar.update(len(rewards))
            actions = e.actions.astype(dtype)
            yield episode_buffer(e.observations, actions, rewards, e.terminated, e.seed)


def _first_steps(e: EpisodeRecord, n: int) -> EpisodeRecord:
    """Returns the first `n` steps of an episode, which has not terminated if there were more."""
    if len(e.rewards) <= n:
        return e
    return EpisodeRecord(e.seed, e.observations[: n + 1], e.actions[:n], e.rewards[:n], False)


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


@dataclasses.dataclass
class _Part:
    """Progress of one part of a dataset."""

    wanted: DatasetPart
    n_transitions: int = 0
    returns: list[float] = dataclasses.field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.n_transitions >= self.wanted.n_transitions


def _chunks(spec: DatasetSpec, parts: list[_Part], policies: Policies) -> Iterator[Chunk]:
    """Yields chunks of each part until it is complete; workers are a few chunks ahead."""
    limit = spec.task.log_episode_steps
    limit_or_none = None if limit == spec.task.max_episode_steps else limit
    for part in parts:
        seeds, policy = part.wanted.seeds, policies.get(part.wanted.kind)
        for start in range(0, len(seeds), CHUNK_EPISODES):
            if part.complete:
                break
            chosen = seeds[start : start + CHUNK_EPISODES]
            yield Chunk(spec.task.env_id, spec.task.env_kwargs, policy, chosen, limit_or_none)


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
        **_unusual_ends(spec, parts),
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


def _unusual_ends(spec: DatasetSpec, parts: list[_Part]) -> dict[str, Any]:
    """Returns a record of ends that replaying in the dataset's environment would not show."""
    unusual: dict[str, Any] = {}
    if spec.task.log_episode_steps != spec.task.max_episode_steps:
        unusual["episode_limit"] = spec.task.log_episode_steps
    if any(part.wanted.is_cut for part in parts):
        unusual["last_episode_cut"] = True
    return unusual


def _algorithm(record: Mapping[str, Any]) -> str:
    if "rule" in record:
        return str(record["algorithm"])
    return f"{record['algorithm']} ({'mean' if 'learned_bins' in record else 'greedy'})"
