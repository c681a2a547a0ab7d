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
    if _by_hand(projected):
        mixed: torch.Tensor = _Attend.apply(projected, n_heads, dropout)  # type: ignore[no-untyped-call]
        return mixed
    q, k, v = _split_heads(projected, 3, n_heads)
    return _join_heads(scaled_dot_product_attention(q, k, v, dropout_p=dropout))


def attend_with_shared(
    own: torch.Tensor, shared: torch.Tensor, n_heads: int, dropout: float
) -> torch.Tensor:
    """`attend` where most tokens are the same in all rows: those products are done once.

    Args:
        own: `(B, M, 3D)` queries, keys and values of each row's own tokens.
        shared: `(N, 3D)` those of the tokens that all rows have.
        n_heads: number of heads (H).
        dropout: probability of dropping an attention weight.

    Returns:
        Mixed values `(B, M + N, D)`.
    """
    if _by_hand(own) and not own.requires_grad:
        mixed: torch.Tensor = _AttendWithShared.apply(own, shared, n_heads, dropout)  # type: ignore[no-untyped-call]
        return mixed
    rows = shared.to(own.dtype).expand(own.shape[0], -1, -1)
    return attend(torch.cat([own, rows], dim=1), n_heads, dropout)


def _by_hand(x: torch.Tensor) -> bool:
    # TorchScript cannot hold a Python function.
    return (
        x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and not is_tracing()
    )


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor, n_heads: int, dropout: float) -> torch.Tensor:
        q, k, v = _split_heads(projected, 3, n_heads).contiguous()
        scale = q.shape[-1] ** -0.5
        weights, factor, dropped = _weigh(q @ k.mT, scale, dropout)  # (B, H, T, T)
        ctx.save_for_backward(q, k, v, weights, factor, dropped)
        ctx.scale = scale
        return _join_heads(dropped @ v)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        q, k, v, weights, factor, dropped = ctx.saved_tensors
        b, h, t, d = q.shape
        mixed = _split_heads(gradient, 1, h)[0].contiguous()
        of_weights = mixed @ v.mT
        of_scores = _weigh_backward(of_weights, weights, factor, ctx.scale)
        result = gradient.new_empty(b, t, 3, h, d)
        for i, part in enumerate((of_scores @ k, of_scores.mT @ q, dropped.mT @ mixed)):
            result[:, :, i] = part.transpose(1, 2)
        return result.flatten(2), None, None


class _AttendWithShared(torch.autograd.Function):
    # Of T = M + N tokens, own ones come first. What shared tokens score each other is the same in
    # all rows, but what dropout leaves of it is not. Only shared tokens get gradients.

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, shared: torch.Tensor, n_heads: int, dropout: float
    ) -> torch.Tensor:
        b, m, _ = own.shape
        # (H, B, M, D/H) and (H, N, D/H)
        own_q, own_k, own_v = _split_heads(own, 3, n_heads).transpose(1, 2).contiguous()
        q, k, v = _split_heads(shared.to(own.dtype), 3, n_heads).contiguous()
        t = m + q.shape[1]
        scale = q.shape[-1] ** -0.5
        scores = own.new_empty(n_heads, b, t, t)
        scores[:, :, :m, :m] = (own_q.float()[..., None, :] * own_k[:, :, None]).sum(-1)
        scores[:, :, :m, m:] = (own_q.flatten(1, 2) @ k.mT).unflatten(1, (b, m))
        scores[:, :, m:, :m] = (own_k.flatten(1, 2) @ q.mT).unflatten(1, (b, m)).mT
        scores[:, :, m:, m:] = (q @ k.mT)[:, None]
        weights, factor, dropped = _weigh(scores, scale, dropout)  # (H, B, T, T)
        # Zeros stand for the values of own tokens, so that weights need not be taken apart.
        v_beside = torch.cat([v.new_zeros(n_heads, m, v.shape[-1]), v], dim=1)
        mixed = (dropped.flatten(1, 2) @ v_beside).unflatten(1, (b, t))
        for i in range(m):
            mixed.addcmul_(dropped[..., i : i + 1], own_v[:, :, i : i + 1])
        ctx.save_for_backward(own_q, own_k, own_v, q, k, v_beside, weights, factor, dropped)
        ctx.scale = scale
        return _join_heads(mixed.transpose(0, 1))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        own_q, own_k, own_v, q, k, v_beside, weights, factor, dropped = ctx.saved_tensors
        h, _, m, _ = own_q.shape
        mixed = _split_heads(gradient, 1, h)[0].transpose(0, 1).contiguous()  # (H, B, T, D/H)
        of_weights = (mixed.flatten(1, 2) @ v_beside.mT).view_as(weights)
        of_weights[..., :m] = mixed @ own_v.mT
        of_scores = _weigh_backward(of_weights, weights, factor, ctx.scale)
        of_v = (dropped.flatten(1, 2).mT @ mixed.flatten(1, 2))[:, m:]
        among = of_scores[:, :, m:, m:].sum(1)  # (H, N, N)
        of_q, of_k = among @ k, among.mT @ q
        for i in range(m):
            of_q += of_scores[:, :, m:, i].mT @ own_k[:, :, i]
            of_k += of_scores[:, :, i, m:].mT @ own_q[:, :, i]
        result = torch.stack([of_q, of_k, of_v]).permute(2, 0, 1, 3).flatten(1)
        return None, result, None, None


def _weigh(
    scores: torch.Tensor, scale: float, dropout: float
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Returns attention weights, what dropout multiplies them with, and their product."""
    weights = _softmax(scores, scale)
    if dropout == 0.0:
        return weights, None, weights
    factor = dropout_factor(weights, dropout)
    return weights, factor, weights * factor


def _weigh_backward(
    gradient: torch.Tensor, weights: torch.Tensor, factor: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Returns the gradient of scores for that of dropped weights, which is overwritten."""
    if factor is not None:
        gradient *= factor
    return _softmax_backward(gradient, weights).mul_(scale)


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
    """`(..., T, parts * D)` to `(parts, ..., H, T, D/H)`."""
    parted: torch.Tensor = x.unflatten(-1, (parts, n_heads, -1))
    return parted.movedim(-3, 0).transpose(-3, -2)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    """`(B, H, T, D/H)` to `(B, T, D)`."""
    return x.transpose(1, 2).flatten(2)
