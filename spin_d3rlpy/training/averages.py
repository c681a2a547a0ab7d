"""Exponential moving averages of weights: of a trained network, and of critics' targets."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Moves `target` towards `online`: `target <- (1 - tau) target + tau online`, in one kernel."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


class WeightAverage:
    """Exponential moving average of a network's weights.

    Step t (from 0) keeps the share `min(decay, (1 + t) / (10 + t))`, so that early averages do not
    contain the random initial weights. `average` is a copy of `source` in evaluation mode.

    Raises:
        ValueError: `decay` is not between 0 and 1.
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
        means: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        for mean, weight in zip(self.average.parameters(), self._source.parameters(), strict=True):
            if weight.requires_grad:
                means.append(mean)
                weights.append(weight)
        keep = min(self._decay, (1 + step) / (10 + step))
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
