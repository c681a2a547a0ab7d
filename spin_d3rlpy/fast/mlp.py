"""Networks of linear layers and ReLUs in few kernels, for GPUs, where launching them is what costs.

Members of an ensemble go through one batched product a layer; nothing is rounded twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from spin_d3rlpy.fast.dropout import Dropout

Member = list[nn.Linear]


def linear_layers(network: nn.Module, head: nn.Linear) -> tuple[Member, float] | None:
    """Returns the linear layers of a d3rlpy encoder and a head after it, and dropout's rate.

    None if there is more in it than linear layers, each followed by a ReLU and all or none of these
    by dropout.
    """
    parts = list(getattr(network, "_layers", ()))
    linears = [part for part in parts if type(part) is nn.Linear]
    others = [part for part in parts if type(part) is not nn.Linear]
    dropouts = [part for part in others if isinstance(part, Dropout)]
    each = 3 if dropouts else 2
    order = [nn.Linear, nn.ReLU, Dropout][:each] * len(linears)
    if not linears or [type(part) for part in parts] != order:
        return None
    return [*linears, head], dropouts[0].rate if dropouts else 0.0


def relu_mlps(x: torch.Tensor, members: Sequence[Member], dropout: float = 0.0) -> torch.Tensor:
    """Returns the outputs of E networks of the same sizes for `(B, in)`: `(E, B, out)` in float32.

    `members` are their linear layers, between which there are ReLUs and dropout. As in
    `spin_d3rlpy.fast.precision`, autocast's type is that of all products but the last layer's.
    """
    device = x.device.type
    on = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if on else torch.float32
    weights = [[layer.weight for layer in layers] for layers in zip(*members, strict=True)]
    biases = [[layer.bias for layer in layers] for layers in zip(*members, strict=True)]
    parameters = [p for layer in (*weights, *biases) for p in layer]
    with torch.autocast(device, enabled=False):
        result: torch.Tensor = _ReluMLPs.apply(x, len(members), dtype, dropout, *parameters)  # type: ignore[no-untyped-call]
    return result


class _ReluMLPs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, e: int, dtype: torch.dtype, dropout: float, *parameters: Any
    ) -> torch.Tensor:
        layers = [parameters[i : i + e] for i in range(0, len(parameters), e)]
        n = len(layers) // 2
        stacked = _side_by_side(layers, [*[dtype] * (n - 1), torch.float32] * 2)
        weights, biases = stacked[:n], stacked[n:]
        scale = 1.0 / (1.0 - dropout)
        inputs = [_rounded(x, dtype)]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            h = inputs[-1]
            if h.dim() == 2:  # the same rows for all: one product
                flat = torch._addmm_activation(bias.flatten(), h, weight.flatten(0, 1).T)
                h = flat if e == 1 else flat.unflatten(1, (e, -1)).transpose(0, 1)
            else:
                h = torch.baddbmm(bias[:, None], h, weight.mT).relu_()
            if dropout:  # its scale is left to the next product
                h = torch.native_dropout(h, dropout, True)[0]
            inputs.append(h)
        last = inputs[-1].float()
        if last.dim() == 2:
            out = torch.addmm(biases[-1][0], last, weights[-1][0].T)[None]
        else:
            out = torch.baddbmm(biases[-1][:, None], last, weights[-1].mT)
        ctx.save_for_backward(*inputs, last, *weights)
        ctx.e, ctx.dtype, ctx.scale = e, dtype, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        n = len(saved) // 2
        inputs, last, weights = saved[:n], saved[n], saved[n + 1 :]
        of_weights: list[Any] = [None] * n
        of_biases: list[Any] = [None] * n
        sums = None
        if len({h.shape for h in inputs[1:]}) == 1:
            shape = inputs[1].expand(ctx.e, -1, -1).shape
            sums = gradient.new_empty(n - 1, *shape, dtype=ctx.dtype)
        for i in reversed(range(n)):
            h, weight = last if i == n - 1 else inputs[i], weights[i]
            if sums is None or i == n - 1:
                of_biases[i] = gradient.sum(1)
            if ctx.e == 1:
                of_weights[i] = (gradient[0].T @ h)[None]
            else:
                of_weights[i] = gradient.mT @ (h.expand(ctx.e, -1, -1) if h.dim() == 2 else h)
            if i == 0:
                break
            # A zero in `h` is what ReLU cut or dropout dropped.
            empty = gradient.new_empty(1, 1, 1)
            if ctx.e == 1:
                below = torch.addmm(empty[0], gradient[0], weight[0], beta=0, alpha=ctx.scale)[None]
            else:
                below = torch.baddbmm(empty, gradient, weight, beta=0, alpha=ctx.scale)
            below, h = below.to(ctx.dtype), inputs[i].expand(ctx.e, -1, -1)
            if sums is None:
                gradient = torch.ops.aten.threshold_backward(below, h, 0)
            else:  # biases' gradients in one sum
                gradient = sums[i - 1]
                torch.ops.aten.threshold_backward.grad_input(below, h, 0, grad_input=gradient)
        if sums is not None:
            of_biases[: n - 1] = sums.sum(2).unbind()
        of_x = (gradient @ weights[0]).sum(0) if ctx.needs_input_grad[0] else None
        gradients = _in_float32([*of_weights, *of_biases])
        return of_x, None, None, None, *(g for layer in gradients for g in layer)


def _side_by_side(
    layers: Sequence[Sequence[Any]], kinds: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Stacks members' parameters, each layer's in its type."""
    stacked: list[torch.Tensor] = []
    pairs: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for members, kind in zip(layers, kinds, strict=True):
        if len(members) == 1 and kind == torch.float32:
            stacked.append(members[0].detach()[None])
            continue
        to = members[0].new_empty(len(members), *members[0].shape, dtype=kind)
        pairs[kind] += zip(to.unbind(), members, strict=True)
        stacked.append(to)
    for copies in pairs.values():
        torch._foreach_copy_([to for to, _ in copies], [p for _, p in copies])
    return stacked


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in a type; several networks in turn take one batch's observations."""
    if x.dtype == dtype or x.requires_grad or x.is_inference():
        return x.to(dtype)
    known = _last.get("x")
    if known is None or known[0]() is not x or known[1] != x._version or known[2].dtype != dtype:
        known = _last["x"] = ref(x), x._version, x.to(dtype)
    return known[2]


_last: dict[str, tuple[ref[torch.Tensor], int, torch.Tensor]] = {}


def _in_float32(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    rounded = [t for t in tensors if t.dtype != torch.float32]
    if not rounded:
        return tensors
    exact = [t.new_empty(t.shape, dtype=torch.float32) for t in rounded]
    torch._foreach_copy_(exact, rounded)
    replaced = iter(exact)
    return [t if t.dtype == torch.float32 else next(replaced) for t in tensors]
