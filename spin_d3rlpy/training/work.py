"""A clock of work: it advances by the operations of a training, not by a machine's seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Fitted to the CPU time of five methods' steps by the tuned recipe on cheetah-run and finger-spin,
# on one core of an AMD EPYC. Nominal times are 0.8 to 1.3 times the real ones; by products alone
# they would be 0.4 to 1.5 times these.
MULTIPLY_ADDS_PER_SECOND = 5e10
SECONDS_PER_CALL = 3e-5
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
    """Nominal seconds of what was computed, the same on every machine, however busy.

    A matrix product (also attention's, a convolution's and an LSTM's) takes time by its
    multiply-adds. In addition every call of a torch operation that is no view takes the same time,
    whatever its size: most of a small network's step is that. Elementwise operations' sizes are not
    counted. Other versions of torch may need another number of calls.

    Attributes:
        products: multiply-adds so far.
        calls: of operations so far.
        preparations: number of contexts of `preparing` so far.
    """

    def __init__(self) -> None:
        self.products = 0
        self.calls = 0
        self.preparations = 0
        self._is_counting = False

    def __call__(self) -> float:
        """Returns nominal seconds."""
        return self.products / MULTIPLY_ADDS_PER_SECOND + self.calls * SECONDS_PER_CALL

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Context whose operations are counted, once if contexts are nested."""
        if self._is_counting:
            yield
            return
        self._is_counting = True
        try:
            with _Operations(self):
                yield
        finally:
            self._is_counting = False

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context of counted products that are no part of a usual step, if one causes them.

        Calls are not counted: they are few, and a resumed run may make others.
        """
        self.preparations += 1
        calls = self.calls
        with self.counting():
            yield
        self.calls = calls


class StepWork:
    """Work of a stage's steps, which the clock adds up.

    Args:
        clock: of the run.
    """

    def __init__(self, clock: WorkClock) -> None:
        self._clock = clock
        self._steps = 0
        self._is_resumed = False
        self._per_step: tuple[int, int] | None = None  # products and calls; None: to be counted

    def measure(self, make: Callable[[], None]) -> float:
        """Makes a step and returns its nominal seconds."""
        clock, began = self._clock, self._clock()
        products, calls, preparations = clock.products, clock.calls, clock.preparations
        due = self._steps < FIRST_COUNTED or self._steps % COUNTED_EVERY == 0
        # A process's first step also makes what later ones reuse.
        if self._per_step is None or (due and not self._is_resumed):
            with clock.counting():
                make()
            self._per_step = clock.products - products, clock.calls - calls
        else:
            make()
            clock.products += self._per_step[0]
            clock.calls += self._per_step[1]
        if clock.preparations != preparations:  # such as cached features, with which steps differ
            self._per_step = None
        self._steps += 1
        self._is_resumed = False
        return clock() - began

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to end at the same step."""
        return {
            "products": self._clock.products,
            "calls": self._clock.calls,
            "steps": self._steps,
            "per_step": self._per_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._clock.products, self._clock.calls = state["products"], state["calls"]
        self._steps, self._per_step = state["steps"], state["per_step"]
        self._is_resumed = True


class _Operations(TorchDispatchMode):
    """Adds everything computed in its context to a clock."""

    def __init__(self, clock: WorkClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            self._clock.calls += 1
        count = _FORMULAS.get(func.overloadpacket)
        if count is not None:
            self._clock.products += count(*args, **kwargs, out_val=result) // 2
        return result
