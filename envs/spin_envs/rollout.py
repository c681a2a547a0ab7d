"""Episodes stepped together, so that a policy is asked once a step for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ActFunction = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class EpisodeRecord:
    """One episode of T steps.

    Args:
        seed: what the environment was reset with.
        observations: `(T + 1, obs)` float32.
        actions: `(T, N)` int64.
        rewards: `(T,)` float64.
        terminated: whether the task ended it (rather than a time limit).
    """

    seed: int
    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    terminated: bool


class _Running:
    """An episode in progress in one environment."""

    def __init__(self, index: int, seed: int, env: gymnasium.Env[Any, Any], record: bool) -> None:
        self.index = index
        self.seed = seed
        self.env = env
        self.record = record
        self.observation, _ = env.reset(seed=seed)
        self.observations = [np.array(self.observation)]
        self.actions: list[NDArray[np.int64]] = []
        self.rewards: list[float] = []
        self.terminated = False

    def step(self, action: NDArray[np.int64]) -> bool:
        self.observation, reward, self.terminated, truncated, _ = self.env.step(action)
        self.rewards.append(float(reward))
        if self.record:
            # Copies: environments and policies may reuse their arrays.
            self.observations.append(np.array(self.observation))
            self.actions.append(np.array(action))
        return self.terminated or truncated

    def finish(self) -> EpisodeRecord:
        return EpisodeRecord(
            seed=self.seed,
            observations=np.stack(self.observations),
            actions=np.stack(self.actions) if self.record else np.zeros((0, 0), np.int64),
            rewards=np.array(self.rewards),
            terminated=self.terminated,
        )


def rollout(
    envs: Sequence[gymnasium.Env[Any, Any]],
    act: ActFunction,
    seeds: Sequence[int],
    record: bool = True,
    on_step: Callable[[int], None] | None = None,
) -> Iterator[EpisodeRecord]:
    """Plays one episode per seed, `len(envs)` at a time in lock-step, and yields them in order.

    Episode `i` depends on `seeds[i]` and on what `act` returns for it, not on how many
    environments there are: each is reset with its own seed and finished ones drop out of the
    batch, so no step is played past an episode's end.

    Args:
        envs: environments to play in, at least one.
        act: gives actions `(B, N)` for observations `(B, obs)` and the indices `(B,)` of the
            episodes they belong to (for policies with one random stream per episode).
        seeds: one per episode.
        record: keep observations and actions; otherwise only rewards and the first observation.
        on_step: called with the number of environment steps just made.

    Raises:
        ValueError: there is no environment, or `act` gives another number of actions than it
            was given observations.
    """
    if not envs:
        raise ValueError("Expected at least one environment to play episodes in, got none.")
    waiting = iter(enumerate(seeds))
    running: list[_Running] = []
    done: dict[int, EpisodeRecord] = {}
    next_index = 0
    free = list(envs)
    while True:
        while free and (item := next(waiting, None)) is not None:
            running.append(_Running(*item, free.pop(), record))
        if not running:
            return
        actions = act(
            np.stack([r.observation for r in running]), np.array([r.index for r in running])
        )
        still = []
        for episode, action in zip(running, actions, strict=True):
            if episode.step(action):
                done[episode.index] = episode.finish()
                free.append(episode.env)
            else:
                still.append(episode)
        if on_step is not None:
            on_step(len(running))
        running = still
        while next_index in done:
            yield done.pop(next_index)
            next_index += 1
