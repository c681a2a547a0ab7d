"""Learning-rate schedules over a known run length."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch

from spin_d3rlpy.errors import require_one_of

ScheduleName = Literal["constant", "linear", "cosine"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A factor on learning rates: it rises from 0, then stays or falls to 0 at the run's end.

    Args:
        name: `"constant"`, `"linear"` or `"cosine"`, after the warm-up.
        warmup: share of the run in which the rate rises in proportion to the steps made.
    """

    name: ScheduleName = "constant"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        require_one_of("lr_schedule", self.name, ScheduleName)
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError(f"Expected warmup in [0, 1), got {self.warmup}.")

    @property
    def is_constant(self) -> bool:
        """Whether the factor is always 1."""
        return self.name == "constant" and not self.warmup

    def factor(self, progress: float) -> float:
        """Returns the factor at a point of the run, from 0 (start) to 1 (end)."""
        if progress < self.warmup:
            return progress / self.warmup
        left = min(1.0, (1.0 - progress) / (1.0 - self.warmup))
        if self.name == "cosine":
            return (1.0 - math.cos(math.pi * left)) / 2.0
        return left if self.name == "linear" else 1.0


def cosine_decay(
    optimizer: torch.optim.Optimizer, n_steps: int
) -> torch.optim.lr_scheduler.CosineAnnealingLR:
    """Returns torch's decay along a cosine, to 0 after `n_steps`; call its `step` after each step.

    `Schedule` reads the rate in the middle of a step, this one at its start. The student and the
    probe keep it, so that their numbers and checkpoints stay what they were.
    """
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, n_steps))
