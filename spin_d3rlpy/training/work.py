"""A clock of work: it advances by multiply-adds of matrix products, not by a machine's seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Multiply-adds of a nominal second: about those of a second on one core of an AMD EPYC with AVX-512
# that trains FactoredIQL by the tuned recipe on cheetah-run (1.9e10 in 31 seconds).
NOMINAL_RATE = 2e10
# Counting takes several times as long as the step itself, so most steps are taken to have as many
# as the last counted one. A prime number meets all phases of what is done every few steps.
FIRST_COUNTED = 3
COUNTED_EVERY = 53

aten = torch.ops.aten


def _lstm(passes: int) -> Callable[..., int]:
    """Formula of an LSTM of one layer, of `(T, B, in)`, or of its gradients, for oneDNN."""

    def operations(x: torch.Tensor, *weights: torch.Tensor, **_: Any) -> int:
        size = weights[0].numel() + weights[1].numel()
        return 2 * passes * x.shape[0] * x.shape[1] * size

    return operations


def _cudnn_lstm(passes: int) -> Callable[..., int]:
    """The same of all layers, for cuDNN."""

    def operations(
        x: torch.Tensor, weights: Sequence[torch.Tensor], *_: object, **__: object
    ) -> int:
        size = sum(weight.numel() for weight in weights if weight.dim() == 2)
        return 2 * passes * x.shape[0] * x.shape[1] * size

    return operations


# By operation: functions of its arguments and result, two for each multiply-add. Torch's lack
# those of LSTMs and of attention on CPUs.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten._addmm_activation: flop_registry[aten.addmm],
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        aten._scaled_dot_product_flash_attention
    ],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
    aten.mkldnn_rnn_layer: _lstm(passes=1),
    aten.mkldnn_rnn_layer_backward: _lstm(passes=2),
    aten._cudnn_rnn: _cudnn_lstm(passes=1),
    aten._cudnn_rnn_backward: _cudnn_lstm(passes=2),
}


class WorkClock:
    """Seconds by the multiply-adds of matrix products (attention's and convolutions' among them).

    Elementwise operations, sums, look-ups, random numbers and optimizers are not counted: a nominal
    second of a method with more of them takes longer. The same computation has the same seconds on
    every machine, however busy.

    Attributes:
        operations: multiply-adds so far.
        preparations: number of contexts of `preparing` so far.
    """

    def __init__(self) -> None:
        self.operations = 0
        self.preparations = 0
        self._is_counting = False

    def __call__(self) -> float:
        """Returns nominal seconds."""
        return self.operations / NOMINAL_RATE

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Context whose products are counted, once if contexts are nested."""
        if self._is_counting:
            yield
            return
        self._is_counting = True
        try:
            with _Products(self):
                yield
        finally:
            self._is_counting = False

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context of counted work that is no part of a usual step, although one may cause it."""
        self.preparations += 1
        with self.counting():
            yield


class StepWork:
    """Work of a stage's steps, which the clock adds up.

    Args:
        clock: of the run.
    """

    def __init__(self, clock: WorkClock) -> None:
        self._clock = clock
        self._steps = 0
        self._per_step: int | None = None  # None: to be counted

    def measure(self, make: Callable[[], None]) -> float:
        """Makes a step and returns its nominal seconds."""
        clock, began = self._clock, self._clock()
        before, preparations = clock.operations, clock.preparations
        due = self._steps < FIRST_COUNTED or self._steps % COUNTED_EVERY == 0
        if self._per_step is None or due:
            with clock.counting():
                make()
            self._per_step = clock.operations - before
        else:
            make()
            clock.operations += self._per_step
        if clock.preparations != preparations:  # such as cached features, with which steps differ
            self._per_step = None
        self._steps += 1
        return clock() - began

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to end at the same step."""
        return {
            "operations": self._clock.operations,
            "steps": self._steps,
            "per_step": self._per_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._clock.operations = state["operations"]
        self._steps, self._per_step = state["steps"], state["per_step"]


class _Products(TorchDispatchMode):
    """Adds the multiply-adds of everything computed in its context to a clock."""

    def __init__(self, clock: WorkClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = _FORMULAS.get(func.overloadpacket)
        if count is not None:
            self._clock.operations += count(*args, **kwargs, out_val=result) // 2
        return result
