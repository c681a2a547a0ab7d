"""Where `fit` stands: what its loop counts, how that is kept, and which run it belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
from typing import Any

import torch
from d3rlpy.logging import D3RLPyLogger

from spin_d3rlpy.algos.impl import MultiDiscreteConfig
from spin_d3rlpy.data import DeviceReplayBuffer


class MeanMetrics:
    """Running means of scalar tensors, which stay on their device until they are logged."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, metrics: dict[str, torch.Tensor]) -> None:
        """Adds one step's metrics."""
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] += 1

    def log(self, logger: D3RLPyLogger) -> None:
        """Hands the means to the logger and starts anew."""
        for name, total in self._sums.items():
            logger.add_metric(name, total.item() / self._counts[name])
        self._sums.clear()
        self._counts.clear()

    def state_dict(self) -> dict[str, Any]:
        """Returns sums and counts."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any], device: str) -> None:
        """Inverse of `state_dict`, on `device`."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._counts = defaultdict(int, state["counts"])


@dataclasses.dataclass
class Progress:
    """Counters and results of a training loop.

    Args:
        step: gradient steps made.
        results: `(epoch, metrics)` of every finished epoch.
        metrics: what was last logged.
        losses: means that are not logged yet.
    """

    step: int = 0
    results: list[tuple[int, dict[str, float]]] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    losses: MeanMetrics = dataclasses.field(default_factory=MeanMetrics)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything as tensors and plain numbers."""
        return {
            "step": self.step,
            "results": [(epoch, _plain(metrics)) for epoch, metrics in self.results],
            "metrics": _plain(self.metrics),
            "losses": self.losses.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], device: str) -> None:
        """Inverse of `state_dict`, on `device`."""
        self.step = state["step"]
        self.results = list(state["results"])
        self.metrics = state["metrics"]
        self.losses.load_state_dict(state["losses"], device)


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}  # not NumPy's


def run_identity(config: MultiDiscreteConfig, buffer: DeviceReplayBuffer) -> dict[str, Any]:
    """Returns what a checkpoint must have in common with the run that goes on from it."""
    digest = hashlib.sha256()
    for array in (buffer.rewards, buffer.actions, buffer.terminals):
        digest.update(array.cpu().numpy().tobytes())
    fields = json.loads(config.serialize())
    del fields["n_steps"]  # a run may be made longer
    return {
        "algorithm": config.get_type(),
        "config": fields,
        "transitions": buffer.transition_count,
        "data": digest.hexdigest(),
    }
