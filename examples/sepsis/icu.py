"""ICU-Sepsis as an environment with masks, and its exact values; needs `pip install icu-sepsis`.

The package's states are numbers, its actions pairs of levels, and `info` lists the pairs that
clinicians chose often enough in a state. Here observations are the state's 47 features, and
`info["action_mask"]` has the levels of each drug that are in one of these pairs.

References:
    * Choudhary et al., ICU-Sepsis: A Benchmark MDP Built from Real Medical Data, 2024.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import gymnasium
import icu_sepsis
import numpy as np
from gymnasium.spaces import Box
from icu_sepsis.envs import ICUSepsisEnv
from icu_sepsis.utils.io import MDPParameters
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NVEC = [5, 5]  # levels of fluids and of vasopressors
N_PAIRS = 25
N_FEATURES = 47
DEATH = 713  # the first of three states in which nothing is decided any more


@functools.cache
def parameters() -> MDPParameters:
    """The package's tables (200 MB), read once for all environments."""
    assert icu_sepsis.__file__ is not None
    return MDPParameters(Path(icu_sepsis.__file__).parent / "envs" / "assets")


class ICU(gymnasium.Env[NDArray[np.float32], NDArray[np.int64]]):
    """A patient; reward 1 for survival."""

    def __init__(self) -> None:
        self._model = ICUSepsisEnv(params=parameters())
        self.observation_space = Box(-np.inf, np.inf, (N_FEATURES,), np.float32)
        self.action_space = self._model.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        _, info = self._model.reset(seed=seed)
        return self._seen(info)

    def step(self, action: NDArray[np.int64]) -> Any:
        _, reward, terminated, truncated, info = self._model.step(action)
        features, seen = self._seen(info)
        return features, float(reward), terminated, truncated, seen

    def _seen(self, info: dict[str, Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        pairs = np.zeros((1, N_PAIRS), bool)
        pairs[0, info["admissible_actions"]] = True
        features = np.asarray(info["state_vector"], np.float32)
        return features, {"action_mask": slot_masks(pairs)[0]}


gymnasium.register("example/icu-sepsis-v0", entry_point="icu:ICU", max_episode_steps=500)


def slot_masks(pairs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns the levels `(S, 2, 5)` of each drug that are in an allowed pair `(S, 25)`.

    They may also allow a pair that is not allowed: two levels, each from another pair.
    """
    grid = pairs.reshape(-1, *NVEC)
    return np.stack([grid.any(axis=2), grid.any(axis=1)], axis=1)


@dataclasses.dataclass(frozen=True)
class Tables:
    """The model itself; S = 716 states, A = 25 pairs of levels."""

    moves: Floats  # (S, A, S) probabilities of the next state
    rewards: Floats  # (S, A) expected
    starts: Floats  # (S,) probabilities of the first state
    clinicians: Floats  # (S, A) probabilities of what they do
    pairs: NDArray[np.bool_]  # (S, A) admissible
    features: NDArray[np.float32]  # (S, 47)

    def optimal_q(self) -> Floats:
        """Returns the optimal values `(S, A)`, without discount, by value iteration."""
        values = np.zeros(len(self.starts))
        for _ in range(2000):
            q = self.rewards + self.moves @ values
            change = np.abs(q.max(axis=1) - values).max()
            values = q.max(axis=1)
            if change < 1e-10:
                break
        return np.asarray(q)

    def value(self, policy: Floats) -> float:
        """Returns the survival rate of a policy `(S, A)`, exactly, by its linear equations."""
        alive = slice(DEATH)
        moves = np.einsum("sa,sat->st", policy[alive], self.moves[alive])[:, alive]
        rewards = (policy[alive] * self.rewards[alive]).sum(axis=1)
        values = np.linalg.solve(np.eye(DEATH) - moves, rewards)
        return float(self.starts[alive] @ values)

    def usual(self) -> Floats:
        """Returns what clinicians do `(S, A)` if only admissible pairs count.

        Elsewhere a few of them gave 16 % of treatments, each too rarely to be estimated.
        """
        kept = self.clinicians * self.pairs
        kept[DEATH:] = 1.0 / N_PAIRS
        return np.asarray(kept / kept.sum(axis=1, keepdims=True))

    def with_deadly_pairs(self) -> Tables:
        """Returns the model in which an inadmissible pair ends with death."""
        forbidden = ~self.pairs
        moves, rewards = self.moves.copy(), self.rewards.copy()
        moves[forbidden] = np.eye(len(self.starts))[DEATH]
        rewards[forbidden] = 0.0
        return dataclasses.replace(self, moves=moves, rewards=rewards)

    def inadmissible_share(self, chosen: NDArray[np.int64]) -> float:
        """Returns the share of states in which the chosen pair `(S,)` is not admissible."""
        return float((~self.pairs[np.arange(DEATH), chosen[:DEATH]]).mean())


def tables() -> Tables:
    """Reads the model."""
    model = ICUSepsisEnv(params=parameters())
    dynamics = model.dynamics
    pairs = np.zeros((model.num_states, N_PAIRS), bool)
    for state, admissible in enumerate(dynamics["admissible_actions"]):
        pairs[state, admissible] = True
    return Tables(
        moves=dynamics["tx_mat"],
        rewards=(dynamics["tx_mat"] * dynamics["r_mat"]).sum(axis=2),
        starts=dynamics["d_0"],
        clinicians=model.expert_policy,
        pairs=pairs,
        features=model.state_cluster_centers.astype(np.float32),
    )


def greedy(values: Floats, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Returns the best pair `(S,)` by values `(S, A)`, of those allowed if they are given."""
    scores = values if allowed is None else np.where(allowed, values, -np.inf)
    return np.asarray(scores.argmax(axis=1))
