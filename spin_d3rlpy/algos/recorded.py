"""An algorithm's update, recorded as a CUDA graph, and whether it can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.impl import Metrics
from spin_d3rlpy.data.buffer.batches import BatchSource, imitation_batch
from spin_d3rlpy.policies.feature_cache import FeatureMiniBatch
from spin_d3rlpy.training.graphs import CompileGraph, GraphedStep, can_record


@dataclasses.dataclass(frozen=True)
class Recordability:
    """What decides whether an algorithm's updates are recorded.

    Attributes:
        wanted: the config's `compile_graph`.
        device: where the networks are.
        enable_ddp: whether several processes train one model.
        by_rules: whether updates choose actions by rules, which wait for the device.
        counts_operations: whether a clock counts operations one by one.
        update_is_overridden: whether `fit` calls a subclass's own `update`.
    """

    wanted: CompileGraph
    device: str
    enable_ddp: bool
    by_rules: bool
    counts_operations: bool
    update_is_overridden: bool

    def reason_against(self, source: BatchSource | None = None) -> str | None:
        """Returns why updates run one by one; None if they are recorded.

        Args:
            source: where `fit` draws batches from; None for batches that a user gives.
        """
        if not self.wanted:
            return "compile_graph is False"
        if not can_record(self.device):
            return "there is no GPU"
        if self.enable_ddp:
            return "several processes train one model"
        if self.by_rules:
            return "updates choose actions by rules"
        if self.counts_operations:
            return "clock='ops' counts operations one by one"
        if source is None:
            return None
        if self.update_is_overridden:
            return "update() is overridden"
        if not source.is_on_one_device:
            return "observations or cached features are in host memory"
        return None


def is_recordable(batch: TorchMiniBatch) -> bool:
    """Whether a recording can read copies of a batch that a user gives.

    Cached features are a view into a dataset: batches of them come from `fit`, and so do those with
    another batch for the policy.
    """
    return not isinstance(batch, FeatureMiniBatch) and imitation_batch(batch) is batch


class RecordedUpdate:
    """An algorithm's update as a CUDA graph, on batches that it is given or draws itself.

    There is one recording at a time: another batch size or dataset replaces it, and
    so does a change of frozen parameters, of which it holds products.
    """

    def __init__(self, algo: Any) -> None:
        self._algo = algo
        self._key: Hashable = None
        self._step: GraphedStep[Metrics] | None = None
        self._batch: TorchMiniBatch | None = None  # whose tensors the recording reads
        self._form: Hashable = None

    def on_source(self, source: BatchSource, batch_size: int) -> Metrics:
        """One step on a batch that the recording itself draws."""

        def step() -> Metrics:
            metrics: Metrics = self._algo.gradient_step(source.sample_transition_batch(batch_size))
            return metrics

        return self._step_for((source, batch_size), step)()

    def on_batch(self, batch: TorchMiniBatch) -> Metrics:
        """One step on a batch, which is copied to where the recording reads it."""
        tensors = _tensors(batch)
        form = tuple((name, value.shape, value.dtype) for name, value in tensors.items())
        if form != self._form:
            copies: dict[str, Any] = {name: torch.empty_like(v) for name, v in tensors.items()}
            self._form, self._batch = form, dataclasses.replace(batch, **copies, numpy_batch=None)
        static = self._batch
        assert static is not None
        torch._foreach_copy_(list(_tensors(static).values()), list(tensors.values()))
        return self._step_for(form, lambda: self._algo.gradient_step(static))()

    def _step_for(self, key: Hashable, step: Callable[[], Metrics]) -> GraphedStep[Metrics]:
        impl = self._algo.impl
        assert impl is not None
        key = key, impl, self._algo.frozen_state()
        if self._step is None or key != self._key:
            optimizers = [optim.optim for optim in impl.optimizers]
            graph = self._algo.config.compile_graph
            self._step = GraphedStep(step, optimizers, impl.device, graph)
            self._key = key
        return self._step


def _tensors(batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
    return {name: v for name, v in vars(batch).items() if isinstance(v, torch.Tensor)}
