"""Training for a given time: how many steps fit into it is measured on the machine at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

UNTIMED_STEPS = 3  # in which memory and caches are made
TIMED_SHARE = 0.02


class Budget:
    """Seconds that the steps of a run may take, shared by its stages.

    Args:
        seconds: in total. Evaluations, and what happens between stages, are not counted.
        clock: what measures them, wall-clock time or, where cores are shared, CPU time.
        n_epochs: epochs of each stage.

    Attributes:
        left: seconds that no stage has used yet.

    Raises:
        ValueError: no seconds.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, n_epochs: int = 10
    ) -> None:
        if not seconds > 0.0:
            raise ValueError(f"Expected seconds above 0, got {seconds}.")
        self.left = seconds
        self.clock = clock
        self.n_epochs = n_epochs


class StageTime:
    """A stage's part of a budget.

    The first steps are timed (those after `UNTIMED_STEPS`, for `TIMED_SHARE` of the seconds); they
    tell how many there will be, which stays as it is from then on, so that a run that is resumed
    ends like one that was not.

    Args:
        budget: the run's.
        share: of what is left of it.

    Attributes:
        seconds: of the stage.
        n_steps: steps that fit in; None until it is known.
    """

    def __init__(self, budget: Budget, share: float) -> None:
        self._budget = budget
        self.seconds = share * budget.left
        self.n_steps: int | None = None
        self._spent = 0.0
        self._untimed = 0.0

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, once the number of steps is known."""
        assert self.n_steps is not None
        return math.ceil(self.n_steps / self._budget.n_epochs)

    @property
    def progress(self) -> float:
        """Share of the seconds that is over."""
        return min(1.0, self._spent / self.seconds)

    def measure(self, step: int, make: Callable[[], None]) -> None:
        """Makes a step, of this number from 0, and takes its seconds off the budget."""
        began = self._budget.clock()
        make()
        seconds = self._budget.clock() - began
        self._budget.left -= seconds
        self._spent += seconds
        if self.n_steps is not None:
            return
        if step < UNTIMED_STEPS:
            self._untimed = self._spent
            return
        timed = self._spent - self._untimed
        if timed > 0.0 and (timed >= TIMED_SHARE * self.seconds or self._spent >= self.seconds):
            a_step = timed / (step + 1 - UNTIMED_STEPS)
            self.n_steps = step + 1 + int(max(0.0, self.seconds - self._spent) / a_step)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured."""
        return {
            "seconds": self.seconds,
            "n_steps": self.n_steps,
            "spent": self._spent,
            "untimed": self._untimed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; the budget has less left then."""
        self.seconds, self.n_steps = state_dict["seconds"], state_dict["n_steps"]
        self._spent, self._untimed = state_dict["spent"], state_dict["untimed"]
        self._budget.left -= self._spent
