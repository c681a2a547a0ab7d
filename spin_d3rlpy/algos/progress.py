"""Where `fit` stands: what its loop counts, how that is kept, and which run it belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import defaultdict
from typing import Any, Literal, TypeAlias, get_args

import torch

from spin_d3rlpy.algos.impl import MultiDiscreteConfig
from spin_d3rlpy.data import DeviceReplayBuffer

Results: TypeAlias = list[tuple[int, dict[str, float]]]  # epochs, from 1, and their metrics
BestIs = Literal["highest", "lowest"]
# Rows of observations that tell datasets apart: hashing all of a large one would take seconds.
IDENTITY_ROWS = 4096


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

    def take(self) -> dict[str, float]:
        """Fetches the means from the device and starts anew."""
        means = {name: total.item() / self._counts[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """Returns sums and counts."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any], device: str) -> None:
        """Inverse of `state_dict`, on `device`."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._counts = defaultdict(int, state["counts"])


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which epoch is the best one, and when to stop because no better one comes.

    Args:
        metric: name of an evaluator.
        best_is: which of its values are better.
        patience: epochs without a better one after which training stops, or None.

    Raises:
        ValueError: an unknown `best_is`, or a `patience` below 1.
    """

    metric: str
    best_is: BestIs = "highest"
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.best_is not in get_args(BestIs):
            raise ValueError(f"Expected best_is 'highest' or 'lowest', got {self.best_is!r}.")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"Expected patience of at least 1, got {self.patience}.")

    def best(self, results: Results) -> int:
        """Returns the first of the best epochs; 0 if there is none. NaN is never better."""
        sign = 1.0 if self.best_is == "highest" else -1.0
        best, best_value = 0, -math.inf
        for epoch, metrics in results:
            if sign * metrics[self.metric] > best_value:
                best, best_value = epoch, sign * metrics[self.metric]
        return best

    def is_over(self, results: Results) -> bool:
        """Whether to stop after these epochs."""
        return self.patience is not None and len(results) - self.best(results) >= self.patience


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
    results: Results = dataclasses.field(default_factory=list)
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
    # Every k-th observation is enough to tell scaled ones from others.
    step = max(1, len(buffer.observations) // IDENTITY_ROWS)
    observations = buffer.observations[::step].contiguous()
    for array in (buffer.rewards, buffer.actions, buffer.terminals, observations):
        digest.update(array.cpu().numpy().data)
    fields = json.loads(config.serialize())
    del fields["n_steps"]  # a run may be made longer
    return {
        "algorithm": config.get_type(),
        "config": fields,
        "transitions": buffer.transition_count,
        "data": digest.hexdigest(),
    }
