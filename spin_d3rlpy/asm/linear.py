"""Linear layers of many rows, fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from spin_d3rlpy._compat import onednn_linear


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.linear` for `x` of shape `(..., in)`.

    In bfloat16 on CPUs torch first writes the bias to all rows and has the product added to them,
    which costs up to a quarter of the product. Here oneDNN adds the bias itself.
    """
    if {x.device.type, x.dtype, weight.dtype} == {"cpu", torch.bfloat16} and onednn_linear():
        out: torch.Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return functional.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        compute = onednn_linear()
        assert compute is not None
        return compute(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        if x is None:
            return of_x, None, None
        rows = gradient.flatten(0, -2)
        return of_x, rows.T @ x.flatten(0, -2), rows.sum(0)
