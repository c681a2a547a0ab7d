"""Worker processes for datasets: playing, replaying and writing episodes.

Run as a script, this file is a worker. It imports neither torch nor the rest of its package, so
that workers are small and start fast.
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
from typing import Any, BinaryIO

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from spin_envs.behavior import BehaviorPolicy
from spin_envs.rollout import ActFunction, EpisodeRecord, rollout
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


def play(chunk: Chunk) -> list[EpisodeRecord]:
    """Returns the chunk's episodes in the order of its seeds."""
    envs = _environments(chunk.env_id, len(chunk.seeds), **chunk.env_kwargs)
    if isinstance(chunk.policy, BehaviorPolicy):
        act = _greedy(chunk.policy)
    else:
        assert isinstance(envs.single_action_space, gymnasium.spaces.MultiDiscrete)
        act = _drawing(chunk.policy, chunk.seeds, envs.single_action_space.nvec)
    # The order in which BLAS adds numbers up depends on its number of threads.
    with threadpool_limits(limits=1):
        return list(rollout(envs, act, chunk.seeds))


@functools.lru_cache(maxsize=1)
def _environments(env_id: str, n: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    return make_batch(env_id, n, **kwargs)


def _greedy(policy: BehaviorPolicy) -> ActFunction:
    """Greedy actions from batches of constant size, each episode in its own row.

    BLAS may round differently for another number of rows; a constant size makes episodes
    independent of their chunk.
    """

    def act(observations: NDArray[np.float32], episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        batch = np.zeros((CHUNK_EPISODES, observations.shape[1]), np.float32)
        batch[episodes] = observations
        return policy(batch)[episodes]

    return act


def _drawing(policy: ScriptedPolicy | None, seeds: range, nvec: NDArray[np.int64]) -> ActFunction:
    """Uniformly random or a rule's actions, from one stream of random numbers per episode."""
    streams = [np.random.default_rng(seed) for seed in seeds]
    if policy is None:
        return lambda _, episodes: np.stack([streams[i].integers(nvec) for i in episodes])
    return lambda x, episodes: policy.act(x, [streams[i] for i in episodes])


@dataclasses.dataclass
class Replay:
    """The simulator's results for an episode's seed and T actions."""

    observations: list[Any]  # one more than there are rewards
    # of the steps made: fewer than T if the episode is over before, or if an action is none of the
    # environment's
    rewards: list[float]
    terminated: bool = False  # as the last step returned it
    truncated: bool = False  # as the last step returned it


def replay(env: gymnasium.Env[Any, Any], seed: int, actions: NDArray[Any]) -> Replay:
    """Replays an episode from its seed with actions `(T, N)`."""
    observation, _ = env.reset(seed=seed)
    result = Replay([observation], [])
    for action in actions:
        if result.terminated or result.truncated or not env.action_space.contains(action):
            break
        observation, reward, result.terminated, result.truncated, _ = env.step(action)
        result.observations.append(observation)
        result.rewards.append(float(reward))
    return result


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
    """Handles a request.

    Requests are `("play", <fields of a chunk>)`, answered with episodes; `("replay", {"spec": JSON
    of an environment's spec, "seed":, "actions":})`, answered with the fields of a `Replay`;
    `("write", {"folder": a Minari dataset's, "episodes": Minari's buffers})`, answered with None;
    and `("arithmetic", {})`.
    """
    if verb == "play":
        return play(Chunk(**fields))
    if verb == "replay":
        env = _environment(fields["spec"])
        return dataclasses.asdict(replay(env, fields["seed"], fields["actions"]))
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
