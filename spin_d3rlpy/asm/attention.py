"""Attention among few tokens, fast on a CPU.

With some dozen tokens, torch's CPU kernels for attention take several times as long as plain
batched products, and autograd spends as long again on re-ordering the gradients of queries, keys
and values. Here both directions are written out. Elsewhere torch's attention is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.jit._trace import is_tracing
from torch.nn.functional import scaled_dot_product_attention

from spin_d3rlpy.asm.dropout import dropout_factor

# torch's softmax works row after row; shorter rows cost less by passes over all of them at once.
LONG_ROW = 16


def attend(projected: torch.Tensor, n_heads: int, dropout: float) -> torch.Tensor:
    """Multi-head scaled dot-product attention of all tokens to all.

    Args:
        projected: `(B, T, 3D)` queries, keys and values, side by side.
        n_heads: number of heads (H).
        dropout: probability of dropping an attention weight.

    Returns:
        Mixed values `(B, T, D)`.
    """
    by_hand = projected.device.type == "cpu" and projected.dtype in (torch.float32, torch.bfloat16)
    if by_hand and not is_tracing():  # TorchScript cannot hold a Python function
        mixed: torch.Tensor = _Attend.apply(projected, n_heads, dropout)  # type: ignore[no-untyped-call]
        return mixed
    q, k, v = _split_heads(projected, 3, n_heads)
    return _join_heads(scaled_dot_product_attention(q, k, v, dropout_p=dropout))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor, n_heads: int, dropout: float) -> torch.Tensor:
        q, k, v = _split_heads(projected, 3, n_heads).contiguous()
        scale = q.shape[-1] ** -0.5
        weights = _softmax(q @ k.mT, scale)  # (B, H, T, T)
        factor = dropout_factor(weights, dropout) if dropout > 0.0 else None
        dropped = weights if factor is None else weights * factor
        ctx.save_for_backward(q, k, v, weights, factor, dropped)
        ctx.scale = scale
        return _join_heads(dropped @ v)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        q, k, v, weights, factor, dropped = ctx.saved_tensors
        b, h, t, d = q.shape
        mixed = _split_heads(gradient, 1, h)[0].contiguous()
        of_weights = mixed @ v.mT
        if factor is not None:
            of_weights *= factor
        of_scores = _softmax_backward(of_weights, weights).mul_(ctx.scale)
        result = gradient.new_empty(b, t, 3, h, d)
        for i, part in enumerate((of_scores @ k, of_scores.mT @ q, dropped.mT @ mixed)):
            result[:, :, i] = part.transpose(1, 2)
        return result.flatten(2), None, None


def _softmax(scores: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns `softmax(scale * scores)` over the last axis; overwrites scores in float32."""
    x = scores.float()
    if x.shape[-1] > LONG_ROW:
        return x.mul_(scale).softmax(-1).to(scores.dtype)
    x = x.sub_(x.amax(-1, keepdim=True)).mul_(scale).exp_()
    return x.div_(x.sum(-1, keepdim=True)).to(scores.dtype)


def _softmax_backward(gradient: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns `w * (g - sum(w * g))`, the gradient of what softmax was taken of."""
    if weights.shape[-1] > LONG_ROW:
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)
    g, w = gradient.float(), weights.float()
    return (g - (w * g).sum(-1, keepdim=True)).mul_(w).to(weights.dtype)


def _split_heads(x: torch.Tensor, parts: int, n_heads: int) -> torch.Tensor:
    """`(B, T, parts * D)` to `(parts, B, H, T, D/H)`."""
    parted: torch.Tensor = x.unflatten(-1, (parts, n_heads, -1))
    return parted.permute(2, 0, 3, 1, 4)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    """`(B, H, T, D/H)` to `(B, T, D)`."""
    return x.transpose(1, 2).flatten(2)
