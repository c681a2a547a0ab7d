"""Worker processes for datasets: playing, replaying and writing episodes.

Run as a script, this file is a worker: small, as it imports neither torch nor its package.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import platform
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, BinaryIO, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from spin_envs.behavior import BehaviorPolicy
from spin_envs.rollout import EpisodeRecord, rollout
from spin_envs.scripted import ScriptedPolicy
from spin_envs.vector import make_batch

CHUNK_EPISODES = 20


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Episodes played together; the result depends only on these fields."""

    env_id: str  # Gymnasium id
    env_kwargs: dict[str, Any]  # arguments of the environment
    policy: BehaviorPolicy | ScriptedPolicy | None  # None for uniformly random actions
    seeds: range  # one per episode, at most `CHUNK_EPISODES`
    max_episode_steps: int | None = None  # None is the environment's own limit


def play(chunk: Chunk) -> list[EpisodeRecord]:
    """Returns the chunk's episodes in the order of its seeds."""
    kwargs, policy = chunk.env_kwargs, chunk.policy
    if chunk.max_episode_steps is not None:
        kwargs = {**kwargs, "max_episode_steps": chunk.max_episode_steps}
    envs = _environments(chunk.env_id, len(chunk.seeds), **kwargs)
    streams = [np.random.default_rng(seed) for seed in chunk.seeds]

    def act(observations: NDArray[np.float32], episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        if isinstance(policy, BehaviorPolicy):
            # BLAS may round differently for another number of rows; a constant number makes
            # episodes independent of their chunk.
            batch = np.zeros((CHUNK_EPISODES, observations.shape[1]), np.float32)
            batch[episodes] = observations
            return policy(batch)[episodes]
        chosen = [streams[i] for i in episodes]
        if policy is not None:
            return policy.act(observations, chosen)
        assert isinstance(envs.single_action_space, gymnasium.spaces.MultiDiscrete)
        return np.stack([rng.integers(envs.single_action_space.nvec) for rng in chosen])

    # The order in which BLAS adds numbers up depends on its number of threads.
    with threadpool_limits(limits=1):
        return list(rollout(envs, act, chunk.seeds))


@functools.lru_cache(maxsize=1, typed=True)  # 1 may be a number of pits, and 1.0 their share
def _environments(env_id: str, n: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    return make_batch(env_id, n, **kwargs)


# Observation, reward, terminated and truncated.
Step: TypeAlias = tuple[Any, float, bool, bool]


def replay(env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any]) -> list[Step]:
    """Replays an episode from its seed with T actions; returns what `reset` and steps give.

    They are less than T + 1 if the episode ends before, or an action is none of the environment's.
    """
    observation, _ = env.reset(seed=seed)
    steps: list[Step] = [(observation, 0.0, False, False)]
    for action in actions:
        if any(steps[-1][2:]) or not env.action_space.contains(action):
            break
        observation, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation, float(reward), terminated, truncated))
    return steps


def arithmetic() -> list[str]:
    """Returns properties that the last bits of results depend on, apart from versions."""
    simd = np.show_config("dicts")["SIMD Extensions"]
    blas = {
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
    libc = " ".join(platform.libc_ver())
    return [platform.system(), platform.machine(), libc, *simd.get("found", []), *sorted(blas)]


@functools.lru_cache(maxsize=1)
def _environment(spec: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(EnvSpec.from_json(spec))


def answer(verb: str, fields: dict[str, Any]) -> Any:
    """Handles a request: play a chunk, replay an episode, write Minari's episode buffers."""
    if verb == "play":
        return play(Chunk(**fields))
    if verb == "replay":
        return replay(_environment(fields["spec"]), fields["seed"], fields["actions"])
    if verb == "write":
        from minari.dataset.minari_storage import MinariStorage

        return MinariStorage.read(fields["folder"]).update_episodes(fields["episodes"])
    return arithmetic()


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers pickled requests until end of file; exceptions are sent as answers."""
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            reply = answer(*request)
        except Exception as error:
            error.add_note("In a worker process:\n" + traceback.format_exc())
            reply = error
        pickle.dump(reply, replies, protocol=pickle.HIGHEST_PROTOCOL)
        replies.flush()


if __name__ == "__main__":
    # The parent ends its workers; Ctrl-C reaches them too, and would print a traceback each.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a library prints must not get between the replies.
    with os.fdopen(os.dup(1), "wb") as own_stdout:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, own_stdout)
