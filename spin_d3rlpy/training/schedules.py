"""Learning-rate schedules over a known run length, and averages of weights."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

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


class WeightAverage:
    """Exponential moving average of a network's weights.

    Step t (from 0) keeps the share `min(decay, (1 + t) / (10 + t))`, so that early averages do not
    contain the random initial weights. `average` is a copy of `source` in evaluation mode.
    """

    def __init__(self, source: nn.Module, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise ValueError(f"Expected ema_decay of 0 (off) or in (0, 1), got {decay}.")
        self.average = copy.deepcopy(source).eval().requires_grad_(False)
        self._source, self._decay = source, decay

    def sync(self) -> None:
        """Makes both networks equal."""
        self.average.load_state_dict(self._source.state_dict())

    def update(self, step: int) -> None:
        """Moves the average towards the weights after a step, numbered from 0."""
        trained = [
            (mean, weight)
            for mean, weight in zip(
                self.average.parameters(), self._source.parameters(), strict=True
            )
            if weight.requires_grad
        ]
        keep = min(self._decay, (1 + step) / (10 + step))
        means, weights = (list(part) for part in zip(*trained, strict=True))
        with torch.no_grad():
            torch._foreach_lerp_(means, weights, 1.0 - keep)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the network has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for mean, weight in zip(self.average.parameters(), self._source.parameters(), strict=True):
            mean.data, weight.data = weight.data, mean.data

    def state_dict(self) -> dict[str, Any]:
        """Returns the averaged weights."""
        return self.average.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.average.load_state_dict(state_dict)
