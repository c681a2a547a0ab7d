"""Replay memory of n-step transitions from several environments stepped together."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from d3rlpy.torch_utility import TorchMiniBatch
from numpy.typing import NDArray


class NStepReplay:
    """A ring of transitions `(s_t, a_t, sum_k gamma^k r_{t+k}, s_{t+n}, terminal, n)`.

    At an episode's end the remaining transitions have a shorter n; truncated episodes bootstrap
    from their last observation.

    Args:
        capacity: number of transitions.
        observation_size: length of an observation.
        n_slots: slots of an action (N).
        n_envs: environments that feed it.
        n_steps: n.
        gamma: discount factor.
        seed: of the sampling.
    """

    def __init__(
        self,
        capacity: int,
        observation_size: int,
        n_slots: int,
        n_envs: int,
        n_steps: int,
        gamma: float,
        seed: int,
    ) -> None:
        self._observations = torch.empty(capacity, observation_size)
        self._next_observations = torch.empty(capacity, observation_size)
        self._actions = torch.empty(capacity, n_slots, dtype=torch.int16)
        self._rewards = torch.empty(capacity, 1)
        self._terminals = torch.empty(capacity, 1)
        self._intervals = torch.empty(capacity, 1)
        self._capacity = capacity
        self._pending: list[deque[Any]] = [deque() for _ in range(n_envs)]
        self._n_steps = n_steps
        self._gamma = gamma
        self._rng = np.random.default_rng(seed)
        self._cursor = 0
        self.size = 0

    def append(
        self,
        env: int,
        observation: NDArray[np.float32],
        action: NDArray[np.int64],
        reward: float,
        next_observation: NDArray[np.float32],
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Adds one environment step."""
        pending = self._pending[env]
        # Copies: callers reuse their arrays for the next step.
        pending.append((observation.copy(), action.copy(), reward))
        if terminated or truncated:
            while pending:
                self._flush_oldest(pending, next_observation, terminated)
        elif len(pending) == self._n_steps:
            self._flush_oldest(pending, next_observation, False)

    def _flush_oldest(
        self, pending: deque[Any], last: NDArray[np.float32], terminated: bool
    ) -> None:
        interval = len(pending)
        reward = sum(self._gamma**k * step[2] for k, step in enumerate(pending))
        observation, action, _ = pending.popleft()
        i = self._cursor
        self._observations[i] = torch.from_numpy(observation)
        self._next_observations[i] = torch.from_numpy(last)
        self._actions[i] = torch.from_numpy(action)
        self._rewards[i] = reward
        self._terminals[i] = float(terminated)
        self._intervals[i] = interval
        self._cursor = (i + 1) % self._capacity
        self.size = min(self.size + 1, self._capacity)

    def sample(self, batch_size: int) -> TorchMiniBatch:
        """Draws rows uniformly with replacement."""
        i = torch.from_numpy(self._rng.integers(self.size, size=batch_size))
        actions = self._actions[i]
        return TorchMiniBatch(
            observations=self._observations[i],
            actions=actions,
            rewards=self._rewards[i],
            next_observations=self._next_observations[i],
            next_actions=actions,
            returns_to_go=self._rewards[i],
            terminals=self._terminals[i],
            intervals=self._intervals[i],
            device="cpu:0",
        )
