"""Keeps frozen weights in the form that products need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import nn

from spin_d3rlpy._compat import is_exporting

T = TypeVar("T")


class Kept(Generic[T]):
    """What was computed of a frozen network's parameters, computed anew when one has changed.

    Its weights need to be folded and rounded to bfloat16 once, not in every step. A change is seen
    by the parameters' version counters: in-place operations and `load_state_dict` count, torch's
    fused optimizers and writing to `parameter.data` do not. So parameters that are trained are not
    kept, even where no gradients are asked for.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._value: T | None = None

    def get(self, parameters: Sequence[nn.Parameter], compute: Callable[[], T]) -> T:
        """Returns `compute()`, which depends only on the parameters and whether autocast is on.

        Nothing is kept of trained parameters, in exports, which must contain the computation, and
        except on CPUs: a recorded CUDA graph would not see the change.
        """
        device = parameters[0].device.type
        if any(p.requires_grad for p in parameters) or device != "cpu" or is_exporting():
            return compute()
        rounding = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        key = (rounding, *((p.data_ptr(), p._version) for p in parameters))
        if key != self._key:
            with torch.no_grad():
                self._value = compute()
            self._key = key
        assert self._value is not None
        return self._value
