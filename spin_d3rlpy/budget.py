"""Training for a given time; the number of steps is measured on the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

UNTIMED_STEPS = 3  # in which memory and caches are made
TIMED_SHARE = 0.02


class Budget:
    """Counts the seconds of a run's steps, limited to a total for all stages.

    Args:
        seconds: total; None if stages have a number of steps. Evaluations and the time between
            stages are not counted.
        clock: returns seconds: wall-clock time or, on shared cores, CPU time.
        n_epochs: epochs per stage if `seconds` is given.

    Attributes:
        spent: seconds of all steps so far.

    Raises:
        ValueError: `seconds` is not positive.
    """

    def __init__(
        self,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        n_epochs: int = 10,
    ) -> None:
        if seconds is not None and not seconds > 0.0:
            raise ValueError(f"Expected seconds above 0, got {seconds}.")
        self.seconds = seconds
        self.spent = 0.0
        self.clock = clock
        self.n_epochs = n_epochs


class StageTime:
    """Number of steps of a stage: given, or as many as fit in its share of a budget.

    With a budget, the steps after the first `UNTIMED_STEPS` are timed for `TIMED_SHARE` of the
    seconds. The number of steps then is fixed, and a resumed run keeps it.

    Args:
        budget: the run's.
        share: share of the remaining budget.
        n_steps: number of steps without a budget of seconds.
        epoch_steps: steps per epoch without a budget; the last epoch may be shorter.

    Attributes:
        seconds: of the stage; None without a budget of seconds.
        n_steps: number of steps; None until known.
    """

    def __init__(self, budget: Budget, share: float, n_steps: int, epoch_steps: int) -> None:
        self._budget = budget
        self.seconds: float | None = None
        self.n_steps: int | None = n_steps
        if budget.seconds is not None:
            self.seconds = share * max(0.0, budget.seconds - budget.spent)
            self.n_steps = None
        self._epoch_steps = epoch_steps
        self._spent = 0.0
        self._untimed = 0.0

    def end_of(self, epoch: int) -> int | None:
        """Returns the number of steps at the end of an epoch, if known."""
        if self.n_steps is None:
            return None
        return min(epoch * self._epoch_steps, self.n_steps)

    def progress(self, step: int) -> float:
        """Returns the completed share of the stage in the middle of a step."""
        if self.n_steps is not None:
            return (step + 0.5) / self.n_steps
        assert self.seconds is not None
        return min(1.0, self._spent / self.seconds) if self.seconds else 1.0

    def measure(self, step: int, make: Callable[[], None]) -> None:
        """Makes step number `step` (from 0) and counts its seconds."""
        began = self._budget.clock()
        make()
        seconds = self._budget.clock() - began
        self._budget.spent += seconds
        self._spent += seconds
        if self.n_steps is not None or self.seconds is None:
            return
        if step < UNTIMED_STEPS:
            self._untimed = self._spent
            return
        timed = self._spent - self._untimed
        if timed > 0.0 and (timed >= TIMED_SHARE * self.seconds or self._spent >= self.seconds):
            a_step = timed / (step + 1 - UNTIMED_STEPS)
            self.n_steps = step + 1 + int(max(0.0, self.seconds - self._spent) / a_step)
            self._epoch_steps = math.ceil(self.n_steps / self._budget.n_epochs)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured."""
        return {
            "seconds": self.seconds,
            "n_steps": self.n_steps,
            "epoch_steps": self._epoch_steps,
            "spent": self._spent,
            "untimed": self._untimed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; a newly given number of steps wins."""
        if self.seconds is not None:
            self.seconds, self.n_steps = state_dict["seconds"], state_dict["n_steps"]
            self._epoch_steps = state_dict["epoch_steps"]
        self._spent, self._untimed = state_dict["spent"], state_dict["untimed"]
        self._budget.spent += self._spent
