"""The sum of a linear layer's chosen outputs, without computing the others."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding_bag


def sum_of_outputs(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, outputs: torch.Tensor
) -> torch.Tensor:
    """`linear(x, weight, bias).gather(1, outputs).sum(1)`, `(B,)`; adds the chosen weights first.

    Args:
        x: `(B, in)`.
        weight: `(out, in)`.
        bias: `(out,)`.
        outputs: `(B, N)` positions, different ones in a row.
    """
    total: torch.Tensor = _SumOfOutputs.apply(x, weight, bias, outputs)  # type: ignore[no-untyped-call]
    return total


class _SumOfOutputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, outputs: torch.Tensor
    ) -> torch.Tensor:
        added = embedding_bag(outputs, weight, mode="sum")  # (B, in)
        ctx.save_for_backward(x, added, outputs)
        ctx.n_outputs = len(weight)
        return (x * added).sum(1) + bias[outputs].sum(1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, added, outputs = ctx.saved_tensors
        per_row = gradient[:, None]
        # One product: adding the rows one after the other to the weight's gradient takes longer.
        of_outputs = gradient.new_zeros(len(x), ctx.n_outputs)
        of_outputs.scatter_(1, outputs, per_row.expand(outputs.shape))
        return per_row * added, of_outputs.mT @ x, of_outputs.sum(0), None
