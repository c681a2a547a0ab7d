"""The sum of a linear layer's chosen outputs, without computing the others."""

from __future__ import annotations

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
        outputs: `(B, N)` positions.
    """
    added = embedding_bag(outputs, weight, mode="sum")  # (B, in)
    return (x * added).sum(1) + bias[outputs].sum(1)
