"""How a policy's decisions differ from those of a log, and how unusual they are in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.asm.rules import OPEN, AnyRule, in_states
from spin_d3rlpy.errors import InvalidActionSpaceError

Actions = NDArray[np.int64]
Floats = NDArray[np.float64]

# A decision is unusual if it is less likely than this share of the logged ones.
UNUSUAL = 0.01


@dataclasses.dataclass(frozen=True)
class Change:
    """A choice of a slot that a policy replaces by another one.

    Attributes:
        slot: number of the slot.
        logged: the choice in the log.
        chosen: the policy's.
        share: of all decisions.
    """

    slot: int
    logged: int
    chosen: int
    share: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A policy's decisions in logged states.

    Attributes:
        logged: the log's actions, `(B, N)`.
        chosen: the policy's actions in the same states, `(B, N)`.
        logged_log_prob: log-probabilities of the logged actions, `(B,)`, by a model of the log.
        chosen_log_prob: of the policy's, `(B,)`.
    """

    logged: Actions
    chosen: Actions
    logged_log_prob: Floats
    chosen_log_prob: Floats

    def __post_init__(self) -> None:
        shape = self.logged.shape
        if len(shape) != 2 or not len(self.logged) or self.chosen.shape != shape:
            raise InvalidActionSpaceError(
                "Expected logged and chosen actions of one shape (B, N), B at least 1, got "
                f"{shape} and {self.chosen.shape}."
            )

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Which choices differ, `(B, N)`."""
        return np.asarray(self.logged != self.chosen)

    @property
    def unusual_below(self) -> float:
        """The log-probability below which a decision counts as unusual."""
        return float(np.quantile(self.logged_log_prob, UNUSUAL))

    @property
    def unusual(self) -> NDArray[np.bool_]:
        """Which of the policy's decisions are less likely than 99 % of the log's, `(B,)`."""
        return np.asarray(self.chosen_log_prob < self.unusual_below)

    def most_frequent_changes(self, slot: int, n: int = 3) -> list[Change]:
        """Returns the changes of a slot that are made most often, the most frequent first."""
        rows = self.changed[:, slot]
        pairs = np.stack([self.logged[rows, slot], self.chosen[rows, slot]], axis=1)
        changes, counts = np.unique(pairs, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:n]
        return [
            Change(
                slot, int(changes[i, 0]), int(changes[i, 1]), float(counts[i] / len(self.logged))
            )
            for i in order
        ]

    def examples(self, n: int) -> list[int]:
        """Returns up to n rows with a change, spread over the log."""
        rows = np.flatnonzero(self.changed.any(1))
        picked = np.linspace(0, len(rows) - 1, min(n, len(rows))).round().astype(np.int64)
        return [int(row) for row in rows[picked]]


def never_logged(actions: Actions, nvec: Sequence[int]) -> list[list[int]]:
    """Returns the choices of each slot that no logged action `(n, N)` makes."""
    return [
        sorted(set(range(m)) - set(np.unique(actions[:, slot]).tolist()))
        for slot, m in enumerate(nvec)
    ]


def share_of_new_combinations(logged: Actions, chosen: Actions) -> float:
    """Returns the share of chosen actions `(B, N)` that equal no logged one `(n, N)`."""
    known = {row.tobytes() for row in np.ascontiguousarray(logged, np.int64)}
    return float(np.mean([row.tobytes() not in known for row in np.ascontiguousarray(chosen)]))


def keeps_rule(rule: AnyRule, actions: NDArray[Any], states: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which whole actions `(B, N)`, in unscaled states `(B, obs)`, keep a rule, `(B,)`.

    An action does if each of its choices is allowed in view of all others.

    Raises:
        InvalidActionSpaceError: the rule returns a mask of another shape than `(B, N, K)`.
    """
    whole = torch.as_tensor(np.asarray(actions)).long()
    asked = in_states(rule, torch.as_tensor(np.asarray(states, np.float32)))
    kept = torch.ones(len(whole), dtype=torch.bool)
    for slot in range(whole.shape[1]):
        partial = whole.clone()
        partial[:, slot] = OPEN
        mask = asked(partial)
        if mask.ndim != 3 or mask.shape[:2] != whole.shape or mask.shape[2] <= whole.max():
            raise InvalidActionSpaceError(
                f"Expected a mask (B, N, K) of the rule, with (B, N) = {tuple(whole.shape)} and K "
                f"of every choice, got shape {tuple(mask.shape)}."
            )
        kept &= mask[:, slot].gather(1, whole[:, slot, None])[:, 0].bool()
    return np.asarray(kept.numpy())
