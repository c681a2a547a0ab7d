"""Playing chunks of episodes, in this process or in worker processes.

Run as a script, this file is a worker. It imports neither torch nor the rest of its package,
which keeps workers small and quick to start.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
import traceback
from typing import Any, BinaryIO

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spin_envs.behavior import BehaviorPolicy
from spin_envs.rollout import EpisodeRecord, rollout
from spin_envs.vector import make_batch

CHUNK_EPISODES = 20


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Episodes that are played together; what comes out depends on nothing else.

    Args:
        env_id: Gymnasium id.
        env_kwargs: arguments of the environment.
        policy: acts greedily; None for uniformly random actions.
        seeds: one per episode, at most `CHUNK_EPISODES`.
    """

    env_id: str
    env_kwargs: dict[str, Any]
    policy: BehaviorPolicy | None
    seeds: range


class ChunkPlayer:
    """Plays chunks one after the other and keeps the environments between them."""

    def __init__(self) -> None:
        self._made_for: tuple[str, dict[str, Any], int] | None = None
        self._envs: VectorEnv[Any, Any, Any] | None = None

    def play(self, chunk: Chunk) -> list[EpisodeRecord]:
        """Returns the chunk's episodes in the order of its seeds."""
        envs = self._environments(chunk)
        act = (
            _GreedyActions(chunk.policy)
            if chunk.policy is not None
            else _RandomActions(chunk.seeds, envs)
        )
        # The order in which BLAS adds numbers up depends on its number of threads.
        with threadpool_limits(limits=1):
            return list(rollout(envs, act, chunk.seeds))

    def close(self) -> None:
        """Frees the environments."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _environments(self, chunk: Chunk) -> VectorEnv[Any, Any, Any]:
        made_for = (chunk.env_id, chunk.env_kwargs, len(chunk.seeds))
        if self._envs is None or self._made_for != made_for:
            self.close()
            self._made_for = made_for
            self._envs = make_batch(chunk.env_id, len(chunk.seeds), **chunk.env_kwargs)
        return self._envs


class _GreedyActions:
    """Asks the policy for a batch of the same size each time, each episode in its own row.

    BLAS may round differently for another number of rows. This way an episode is the same in a
    full chunk, in a smaller one and after others have ended.
    """

    def __init__(self, policy: BehaviorPolicy) -> None:
        self._policy = policy

    def __call__(
        self, observations: NDArray[np.float32], episodes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        batch = np.zeros((CHUNK_EPISODES, observations.shape[1]), np.float32)
        batch[episodes] = observations
        return self._policy(batch)[episodes]


class _RandomActions:
    """Uniformly random actions, from one stream of random numbers per episode."""

    def __init__(self, seeds: range, envs: VectorEnv[Any, Any, Any]) -> None:
        assert isinstance(envs.single_action_space, gymnasium.spaces.MultiDiscrete)
        self._nvec = envs.single_action_space.nvec
        self._streams = [np.random.default_rng(seed) for seed in seeds]

    def __call__(
        self, observations: NDArray[np.float32], episodes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return np.stack([self._streams[i].integers(self._nvec) for i in episodes])


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers pickled chunk fields with pickled episodes (or an exception) until end of file."""
    player = ChunkPlayer()
    while True:
        try:
            chunk = Chunk(**pickle.load(requests))
        except EOFError:
            return
        reply: list[EpisodeRecord] | Exception
        try:
            reply = player.play(chunk)
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
