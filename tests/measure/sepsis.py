"""ICU-Sepsis: a model of sepsis treatment whose values can be computed exactly from its tables.

It was estimated from MIMIC-III: 716 states (47 features each), 5 levels of fluids and 5 of
vasopressors, reward 1 for survival, no discount. The package `icu-sepsis` has the tables.

References:
    * Choudhary et al., ICU-Sepsis: A Benchmark MDP Built from Real Medical Data, 2024.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes

Floats = NDArray[np.float64]

NVEC = [5, 5]  # fluids, vasopressors
_DEAD, _ALIVE = 713, 714  # and 715, from which nothing leads on


def is_installed() -> bool:
    """Whether the tables are there."""
    return importlib.util.find_spec("icu_sepsis") is not None


@dataclasses.dataclass(frozen=True)
class Sepsis:
    """The tables; S = 716 states, A = 25 pairs of levels."""

    moves: Floats  # (S, A, S)
    rewards: Floats  # (S, A), expected
    starts: Floats  # (S,)
    clinicians: Floats  # (S, A)
    features: NDArray[np.float32]  # (S, 47)

    def q_values(self, values: Floats) -> Floats:
        """Returns Q `(S, A)` of the next states' values `(S,)`."""
        return self.rewards + self.moves @ values

    def value(self, policy: Floats) -> float:
        """Returns the exact value of a policy `(S, A)` by its linear equations."""
        alive = np.arange(_DEAD)
        moves = np.einsum("sa,sat->st", policy[alive], self.moves[alive])[:, alive]
        rewards = (policy[alive] * self.rewards[alive]).sum(1)
        values = np.linalg.solve(np.eye(len(alive)) - moves, rewards)
        return float(self.starts[alive] @ values)

    def optimal_q(self) -> Floats:
        """Returns the optimal Q `(S, A)`, by value iteration."""
        values = np.zeros(len(self.starts))
        for _ in range(2000):
            updated = self.q_values(values).max(1)
            if np.abs(updated - values).max() < 1e-10:
                break
            values = updated
        return self.q_values(values)

    def play(self, policy: Floats, episodes: int, seed: int) -> tuple[DeviceReplayBuffer, Floats]:
        """Returns logged episodes and the probability of each logged action, `(n,)`."""
        rng = np.random.default_rng(seed)
        state = rng.choice(len(self.starts), size=episodes, p=self.starts)
        visited, taken, paid, alive = [state], [], [], [state < _DEAD]
        choices, moves = policy.cumsum(1), self.moves
        while alive[-1].any():
            action = np.minimum((choices[state] < rng.random((episodes, 1))).sum(1), 24)
            chances = moves[state, action].cumsum(1)
            state = (chances < rng.random((episodes, 1)) * chances[:, -1:]).sum(1)
            visited.append(state)
            taken.append(action)
            paid.append(state == _ALIVE)
            alive.append(alive[-1] & (state < _DEAD))
        return self._as_log(policy, *(np.array(x).T for x in (visited, taken, paid, alive)))

    def _as_log(
        self,
        policy: Floats,
        visited: NDArray[Any],
        taken: NDArray[Any],
        paid: NDArray[Any],
        alive: NDArray[np.bool_],
    ) -> tuple[DeviceReplayBuffer, Floats]:
        lengths = alive.sum(1)
        kept, logged = [], []
        for i, length in enumerate(lengths.tolist()):
            states, actions = visited[i, : length + 1], taken[i, :length]
            logged.append(policy[states[:-1], actions])
            kept.append(
                EpisodeArrays(
                    name=f"episode {i}",
                    observations=self.features[states],
                    actions=np.stack(np.divmod(actions, 5), axis=1),
                    rewards=paid[i, :length].astype(np.float64),
                    terminated=True,
                )
            )
        stacked = stack_episodes(kept, lengths.tolist(), NVEC)
        return DeviceReplayBuffer(stacked), np.concatenate(logged)


class TablePolicy:
    """A policy given as a table `(S, A)`, for states known by their features."""

    def __init__(self, model: Sepsis, table: Floats) -> None:
        self.table = table
        self._state_of = {row.tobytes(): i for i, row in enumerate(model.features)}

    def rows(self, observations: NDArray[Any]) -> Floats:
        """Returns probabilities `(B, A)`."""
        keys = np.ascontiguousarray(observations, np.float32)
        return np.asarray(self.table[[self._state_of[row.tobytes()] for row in keys]])

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        pair = actions[:, 0] * 5 + actions[:, 1]
        chosen = np.take_along_axis(self.rows(observations), pair[:, None].astype(np.int64), 1)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(chosen[:, 0]))

    def sample(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        import torch

        drawn = torch.multinomial(torch.as_tensor(self.rows(observations)), 1)[:, 0].numpy()
        return np.stack(np.divmod(drawn, 5), axis=1)


def load() -> Sepsis:
    """Reads the tables without importing the package, which needs pandas."""
    spec = importlib.util.find_spec("icu_sepsis")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("Install the tables: pip install icu-sepsis==2.0.1")
    path = Path(spec.origin).parent / "envs" / "assets" / "dynamics.npz"
    with np.load(path) as tables:
        moves, rewards = tables["tx_mat"], tables["r_mat"]
        features = tables["state_cluster_centers"].astype(np.float32)
        clinicians = tables["expert_policy"]
        clinicians[_DEAD:] = 1.0 / clinicians.shape[1]  # where nothing is decided any more
        return Sepsis(
            moves=moves,
            rewards=(moves * rewards).sum(2),
            starts=tables["d_0"],
            clinicians=clinicians,
            features=features,
        )
