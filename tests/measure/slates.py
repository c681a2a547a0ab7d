"""Synthetic slates whose value can be summed up exactly: six kinds of user, 120 slates each."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NVEC = [3, 4, 2, 5]
USERS = 6
_ALL = np.array(list(itertools.product(*map(range, NVEC))))  # (120, N)


@dataclasses.dataclass(frozen=True)
class SlateLog:
    """Logged slates."""

    observations: NDArray[np.float32]  # (n, USERS), one-hot
    actions: NDArray[np.int64]  # (n, N)
    rewards: Floats  # (n, N), clicks

    @property
    def transition_count(self) -> int:
        """Number of slates."""
        return len(self.actions)

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a batch for pre-training."""
        rows = torch.randint(len(self.actions), (batch_size,)).numpy()
        return torch.from_numpy(self.observations[rows]), torch.from_numpy(self.actions[rows])


class SlateTable:
    """A policy given by probabilities of all slates, `(USERS, 120)`."""

    def __init__(self, table: Floats) -> None:
        self.table = table

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        return self._log_of(observations, (actions[:, None] == _ALL).all(2))

    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = actions[:, None] == _ALL  # (n, 120, N)
        slots = range(same.shape[2])
        return np.stack([self._log_of(observations, same[:, :, i]) for i in slots], axis=1)

    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = np.logical_and.accumulate(actions[:, None] == _ALL, axis=2)
        slots = range(same.shape[2])
        return np.stack([self._log_of(observations, same[:, :, i]) for i in slots], axis=1)

    def sample(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        rows = torch.as_tensor(self.table[observations.argmax(1)])
        return np.asarray(_ALL[torch.multinomial(rows, 1)[:, 0].numpy()])

    def _log_of(self, observations: NDArray[Any], which: NDArray[np.bool_]) -> Floats:
        return np.asarray(np.log((self.table[observations.argmax(1)] * which).sum(1)))


class Slates:
    """The problem.

    Args:
        reward: `"own"`: a click depends on the slot's own choice; `"cascade"`: on earlier slots'
            choices as well.
    """

    def __init__(self, reward: str) -> None:
        rng = np.random.default_rng(7)
        per_choice = [rng.normal(size=(USERS, m)) for m in NVEC]
        pairs = rng.normal(size=len(_ALL))  # what goes together, for all users
        own = [scores[:, _ALL[:, i]] for i, scores in enumerate(per_choice)]
        logits = 0.5 * sum(own) + 0.5 * pairs
        self.behavior = SlateTable(_softmax(logits))
        liked = [rng.normal(size=(USERS, m))[:, _ALL[:, i]] for i, m in enumerate(NVEC)]
        chances = np.stack(liked, axis=2)  # (USERS, 120, N)
        if reward == "cascade":
            chances = chances + 1.5 * (np.roll(_ALL, 1, axis=1) % 2 == _ALL % 2) * (
                np.arange(len(NVEC)) > 0
            )
        self.chances = 1.0 / (1.0 + np.exp(1.0 - chances))
        self.evaluated = SlateTable(_softmax(logits + 0.5 * sum(liked)))

    def value(self, policy: SlateTable) -> float:
        """Returns a policy's exact expected number of clicks."""
        return float((policy.table * self.chances.sum(2)).sum(1).mean())

    def draw(self, n: int, seed: int) -> SlateLog:
        """Returns n logged slates."""
        rng = np.random.default_rng(seed)
        users = rng.integers(USERS, size=n)
        chosen = (self.behavior.table.cumsum(1)[users] < rng.random((n, 1))).sum(1)
        chosen = np.minimum(chosen, len(_ALL) - 1)
        clicks = rng.random((n, len(NVEC))) < self.chances[users, chosen]
        one_hot = np.eye(USERS, dtype=np.float32)[users]
        return SlateLog(one_hot, _ALL[chosen], clicks.astype(np.float64))


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))
