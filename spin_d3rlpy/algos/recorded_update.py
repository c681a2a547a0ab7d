"""An algorithm's update as a CUDA graph, on batches that it is given or draws itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.impl import MultiDiscreteImpl
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast.transformer import state_of
from spin_d3rlpy.graphs import CompileGraph, CudaRecorder, GraphedStep

Metrics = dict[str, torch.Tensor]


class RecordedUpdate:
    """The update `compute` of one built algorithm, as long as `phase` and `frozen` are the same.

    There is one recording at a time: another batch size or another dataset replaces it. `frozen`
    are parameters that no step changes, of which recordings may hold products.
    """

    def __init__(
        self,
        compute: Callable[[TorchMiniBatch], Metrics],
        impl: MultiDiscreteImpl,
        phase: object,
        frozen: Sequence[torch.Tensor] = (),
        compile_graph: CompileGraph = True,
    ) -> None:
        self._compute = compute
        self._impl = impl
        self._phase = phase
        self._compile_graph: CompileGraph = compile_graph
        self._frozen, self._state = frozen, state_of(frozen)
        self._key: Hashable = None
        self._step: GraphedStep[Metrics] | None = None
        self._batch: TorchMiniBatch | None = None  # whose tensors the recording reads
        self._recorder = CudaRecorder(impl.device)

    def is_for(self, impl: MultiDiscreteImpl, phase: object) -> bool:
        """Whether this is the update of these networks in this phase."""
        same = impl is self._impl and phase == self._phase
        return same and state_of(self._frozen) == self._state

    def on_source(self, source: DeviceReplayBuffer, batch_size: int) -> Metrics:
        """One step on a batch that the recording itself draws."""

        def step() -> Metrics:
            return self._compute(source.sample_transition_batch(batch_size))

        return self._step_for((source, batch_size), step)()

    def on_batch(self, batch: TorchMiniBatch) -> Metrics:
        """One step on a batch, which is copied to where the recording reads it."""
        tensors = _tensors(batch)
        key = tuple((name, value.shape, value.dtype) for name, value in tensors.items())
        if key != self._key:
            copies: dict[str, Any] = {name: torch.empty_like(v) for name, v in tensors.items()}
            self._batch = dataclasses.replace(batch, **copies, numpy_batch=None)
        static = self._batch
        assert static is not None
        torch._foreach_copy_(list(_tensors(static).values()), list(tensors.values()))
        return self._step_for(key, lambda: self._compute(static))()

    def _step_for(self, key: Hashable, step: Callable[[], Metrics]) -> GraphedStep[Metrics]:
        if self._step is None or key != self._key:
            optimizers = [optim.optim for optim in self._impl.optimizers]
            self._key = key
            self._step = GraphedStep(step, optimizers, self._recorder, self._compile_graph)
        return self._step


def _tensors(batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
    return {name: v for name, v in vars(batch).items() if isinstance(v, torch.Tensor)}
