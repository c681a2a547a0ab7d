"""What a dataset's actions show: choices never made, combinations, how similar states are decided.

Where similar states are decided alike, nothing else was tried, and no method can know whether it
would be better.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_STEPS = 20_000  # whose states are compared; the others' choices are counted
COMPARED = 1_000  # of them, each with all the others
NEARLY_DETERMINISTIC = 1.05  # choices of a slot in a state: hardly anything else was tried


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What a dataset's actions show.

    Attributes:
        never_made: by slot, the choices that no step has.
        combinations: different actions among the steps looked at.
        steps: that were looked at for `combinations` and `choices_per_state`, evenly spaced.
        choices_per_state: effective number of choices that a slot has in a state: the reciprocal of
            the probability that the most similar state of another episode has the same choice
            (inverse Simpson index, mean over slots). 1 if decisions follow from the state, K if K
            choices are drawn evenly; None with a single episode.
    """

    never_made: list[list[int]]
    combinations: int
    steps: int
    choices_per_state: float | None

    @property
    def is_nearly_deterministic(self) -> bool:
        """Whether nothing was tried but one choice for each state."""
        return self.choices_per_state is not None and self.choices_per_state < NEARLY_DETERMINISTIC

    def lines(self) -> list[str]:
        """Returns the figures in words."""
        lines = [f"actions: {self.combinations:,} different ones in {self.steps:,} steps"]
        missing = [
            f"slot {slot}: {', '.join(map(str, choices[:10]))}{', ...' if choices[10:] else ''}"
            for slot, choices in enumerate(self.never_made)
            if choices
        ]
        if missing:
            more = f"; and of {len(missing) - 5} more slots" if missing[5:] else ""
            lines.append(f"choices never made: {'; '.join(missing[:5])}{more}")
        if self.choices_per_state is not None:
            lines.append(f"in similar states a slot has {self.choices_per_state:.2f} choices")
        if self.is_nearly_deterministic:
            lines.append(
                "  nearly deterministic: nothing else was tried, so nothing can be known to be "
                "better. Collect data with exploration."
            )
        return lines


class CoverageCounter:
    """Collects what `Coverage` needs, episode by episode.

    Args:
        nvec: choices of each slot.
        n_steps: of the whole dataset.
    """

    def __init__(self, nvec: Sequence[int], n_steps: int) -> None:
        self._counts = [np.zeros(n, np.int64) for n in nvec]
        self._spacing = max(1, math.ceil(n_steps / MOST_STEPS))
        self._next = 0  # first step of the next episode that is looked at
        self._states: list[NDArray[np.float32]] = []
        self._actions: list[NDArray[np.int64]] = []
        self._episodes: list[NDArray[np.int64]] = []

    def add(self, observations: NDArray[Any], actions: NDArray[np.integer[Any]]) -> None:
        """Adds an episode: observations `(T or T + 1, obs)`, actions `(T, N)` of valid choices."""
        for counts, chosen in zip(self._counts, actions.T, strict=True):
            counts += np.bincount(chosen, minlength=len(counts))
        steps = np.arange(self._next, len(actions), self._spacing)
        after = int(steps[-1]) + self._spacing if len(steps) else self._next
        self._next = after - len(actions)
        self._states.append(np.asarray(observations, np.float32)[steps])
        self._actions.append(actions[steps].astype(np.int64))
        self._episodes.append(np.full(len(steps), len(self._episodes)))

    def result(self) -> Coverage:
        """Compares the states."""
        actions = np.concatenate(self._actions)
        return Coverage(
            never_made=[np.flatnonzero(counts == 0).tolist() for counts in self._counts],
            combinations=len(np.unique(actions, axis=0)),
            steps=len(actions),
            choices_per_state=self._choices_per_state(actions),
        )

    def _choices_per_state(self, actions: NDArray[np.int64]) -> float | None:
        states, episodes = np.concatenate(self._states), np.concatenate(self._episodes)
        if len(np.unique(episodes)) < 2:
            return None
        states = (states - states.mean(0)) / (states.std(0) + 1e-6)
        squares = np.square(states).sum(1)
        compared = np.unique(np.linspace(0, len(states) - 1, COMPARED).round().astype(int))
        alike = np.zeros(actions.shape[1])
        for i in compared:
            distances = squares - 2.0 * (states @ states[i])
            distances[episodes == episodes[i]] = np.inf
            alike += actions[i] == actions[distances.argmin()]
        share = float((alike / len(compared)).mean())
        return 1.0 / share if share > 0.0 else float(np.mean([len(c) for c in self._counts]))
