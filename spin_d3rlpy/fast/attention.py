"""Attention among few tokens, where a CPU's plain products are faster than torch's attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from spin_d3rlpy.fast.dropout import dropout_factor, is_on_cpu


def attend(
    projected: torch.Tensor, n_heads: int, dropout: float, heads_first: bool = False
) -> torch.Tensor:
    """Multi-head scaled dot-product attention of all tokens to all: mixed values `(B, T, D)`.

    `projected` `(B, T, 3D)` are queries, keys and values, side by side. `heads_first` draws
    dropout's random numbers head after head instead of row after row.
    """
    if is_on_cpu(projected):
        mixed: torch.Tensor = _Attend.apply(projected, n_heads, dropout, heads_first)  # type: ignore[no-untyped-call]
        return mixed
    return attend_separately(projected.chunk(3, -1), n_heads, dropout)


def attend_separately(
    projected: Sequence[torch.Tensor], n_heads: int, dropout: float
) -> torch.Tensor:
    """The same by torch's attention, of queries, keys and values `(B, T, D)` each."""
    q, k, v = (y.unflatten(-1, (n_heads, -1)).transpose(1, 2) for y in projected)
    return _join_heads(scaled_dot_product_attention(q, k, v, dropout_p=dropout))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: torch.Tensor, n_heads: int, dropout: float, heads_first: bool
    ) -> torch.Tensor:
        q, k, v = _split_heads(projected, 3, n_heads).contiguous()
        ctx.scale = q.shape[-1] ** -0.5
        weights = dropped = (q @ k.mT).mul_(ctx.scale).softmax(-1)  # (B, H, T, T)
        factor = None
        if dropout > 0.0:
            if heads_first:
                factor = dropout_factor(weights.transpose(0, 1), dropout).transpose(0, 1)
            else:
                factor = dropout_factor(weights, dropout)
            dropped = weights * factor
        ctx.save_for_backward(q, k, v, weights, factor, dropped)
        return _join_heads(dropped @ v)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, weights, factor, dropped = ctx.saved_tensors
        b, h, t, d = q.shape
        mixed = _split_heads(gradient, 1, h)[0].contiguous()
        grad_weights = mixed @ v.mT
        if factor is not None:
            grad_weights *= factor
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_scores *= ctx.scale
        result = gradient.new_empty(b, t, 3, h, d)
        for i, part in enumerate((grad_scores @ k, grad_scores.mT @ q, dropped.mT @ mixed)):
            result[:, :, i] = part.transpose(1, 2)
        return result.flatten(2), None, None, None


def _split_heads(x: torch.Tensor, parts: int, n_heads: int) -> torch.Tensor:
    """`(B, T, parts * D)` to `(parts, B, H, T, D/H)`."""
    parted: torch.Tensor = x.unflatten(-1, (parts, n_heads, -1))
    return parted.permute(2, 0, 3, 1, 4)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    """`(B, H, T, D/H)` to `(B, T, D)`."""
    return x.transpose(1, 2).flatten(2)
