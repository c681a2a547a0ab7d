"""Passes over the data that networks are trained in, where more would make them worse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spin_d3rlpy.training.schedules import Schedule


class MostPasses:
    """How much of their training networks have had: so many passes over the data, or the run.

    Args:
        n_passes: at most.
        n_rows: that a pass has.
        batch_size: of a step.
        first_step: of the run.
        schedule: of learning rates, over this share.
    """

    def __init__(
        self, n_passes: float, n_rows: int, batch_size: int, first_step: int, schedule: Schedule
    ) -> None:
        self.n_steps = math.ceil(n_passes * n_rows / batch_size)
        self.first_step, self.schedule = first_step, schedule

    def progress(self, step: int, of_run: float) -> float:
        """Returns the share that is done; 1 and more: nothing is left.

        Args:
            step: the next one.
            of_run: completed share of the run.
        """
        return max(of_run, (step - self.first_step) / self.n_steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns where the run began."""
        return {"first_step": self.first_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.first_step = state["first_step"]
