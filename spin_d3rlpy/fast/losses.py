"""Losses in few kernels: a product of two vectors, whose gradient is one of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu


def squared_error(u: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns `scale * (u ** 2).sum()`."""
    return _product(u, u.detach(), scale, 2.0 * scale)


def expectile(u: torch.Tensor, tau: float) -> torch.Tensor:
    """Returns the mean of `|tau - 1(u < 0)| u^2`."""
    weighted = leaky_relu(u.detach(), (1.0 - tau) / tau)  # over tau
    return _product(u, weighted, tau / u.numel(), 2.0 * tau / u.numel())


def weighted_mean(x: torch.Tensor, weight: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    """Returns `sign * (weight * x).mean()`."""
    return _product(x, weight, sign / x.numel(), sign / x.numel())


@functools.cache
def one(device: torch.device) -> torch.Tensor:
    """The gradient that a loss begins with."""
    return torch.ones((), device=device)


@functools.cache
def zero(device: torch.device) -> torch.Tensor:
    """What products are added to."""
    return torch.zeros((), device=device)


def _product(x: torch.Tensor, y: torch.Tensor, scale: float, slope: float) -> torch.Tensor:
    with torch.autocast(x.device.type, enabled=False):
        result: torch.Tensor = _Product.apply(x, y, scale, slope)  # type: ignore[no-untyped-call]
    return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: float, slope: float) -> Any:
        ctx.save_for_backward(y)
        ctx.slope = slope
        return torch.addmv(x.new_empty(1), x.reshape(1, -1), y.reshape(-1), beta=0, alpha=scale)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        # One kernel, and no matrix product: it is the first of a backward pass, whose thread has
        # no CUDA context before its first kernel, of which cuBLAS warns.
        return torch.addcmul(zero(y.device), y, gradient, value=ctx.slope), None, None, None


class _SlotLogProb(torch.autograd.Function):
    """Of logits `(B, N, K)` and choices `(B, N)`: the sum over slots of log-softmax, `(B,)`."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        log_probs = logits.log_softmax(-1)
        ctx.save_for_backward(log_probs, actions)
        return log_probs.gather(-1, actions[..., None]).sum((1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        log_probs, actions = ctx.saved_tensors
        of_chosen = gradient[:, None, None].expand_as(actions[..., None])
        of_logits = torch.zeros_like(log_probs).scatter_(2, actions[..., None], of_chosen)
        return torch._log_softmax_backward_data(of_logits, log_probs, -1, of_logits.dtype), None


def slot_log_prob(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability `(B,)` of choices `(B, N)` by logits `(B, N, K)`."""
    result: torch.Tensor = _SlotLogProb.apply(logits, actions)  # type: ignore[no-untyped-call]
    return result
