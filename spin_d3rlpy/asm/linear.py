"""Linear layers of many rows, fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from spin_d3rlpy._compat import is_exporting, onednn_linear


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.linear` for `x` of shape `(..., in)`.

    On CPUs torch first writes the bias to all rows and has the product added to them, which costs
    up to a quarter of the product. Where products are oneDNN's, that adds the bias itself here.
    """
    on_cpu = x.device.type == "cpu" and x.dtype == weight.dtype and not is_exporting()
    operator = onednn_linear(x.dtype) if on_cpu else None
    if operator is None:
        return functional.linear(x, weight, bias)
    out: torch.Tensor = _Linear.apply(x, weight, bias, operator)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, operator: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        out: torch.Tensor = operator(x, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        if x is None:
            return of_x, None, None, None
        rows = gradient.flatten(0, -2)
        return of_x, rows.T @ x.flatten(0, -2), rows.sum(0), None
