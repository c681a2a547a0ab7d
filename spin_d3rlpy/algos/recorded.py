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
from spin_d3rlpy.training.graphs import GraphedStep, can_record


def is_recorded(algo: Any) -> bool:
    """Whether an algorithm's updates are recorded, on a source that does not forbid it."""
    return algo.config.compile_graph is not False and _reason_of_algo(algo) is None


def reason_against(algo: Any, source: BatchSource) -> str | None:
    """Returns why steps on batches of `source` run one by one; None if they are recorded."""
    if not algo.config.compile_graph:
        return "compile_graph is False"
    reason = _reason_of_algo(algo)
    if reason is None and algo.overrides_update:
        reason = "update() is overridden"
    if reason is None and not source.is_on_one_device:
        reason = "observations or cached features are in host memory"
    return reason


def is_recordable(batch: TorchMiniBatch) -> bool:
    """Whether a recording can read copies of a batch that a user gives.

    Cached features are a view into a dataset: batches of them come from `fit`, and so do those with
    another batch for the policy.
    """
    return not isinstance(batch, FeatureMiniBatch) and imitation_batch(batch) is batch


def _reason_of_algo(algo: Any) -> str | None:
    if not can_record(algo.device):
        return "there is no GPU"
    if algo.enable_ddp:
        return "several processes train one model"
    return "updates choose actions by rules" if algo.updates_by_rules else None


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
