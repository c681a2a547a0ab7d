"""The trunk of `spin_d3rlpy.asm.model` in fewer and larger operations.

- Both norms before attention standardize the same vectors and differ only in scale and shift: that
  is done once, and scales and shifts are folded into the weights after them.
- Slot tokens are rows of a table, whose projections in the first block are computed once.
- Of the last block, only what is asked for is computed after attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, gelu, layer_norm, linear

from spin_d3rlpy.fast import switch
from spin_d3rlpy.fast.attention import attend, attend_separately
from spin_d3rlpy.fast.dropout import add_dropout, dropout


class Affine(NamedTuple):
    """Weight `(out, in)` and bias `(out,)` of a linear layer."""

    weight: torch.Tensor
    bias: torch.Tensor


# The state encoder's layers, then each block's: to queries, keys and values, out, up, down.
Layers = list[list[Affine]]
_frozen: WeakKeyDictionary[nn.Module, tuple[object, Layers]] = WeakKeyDictionary()


def forward(
    trunk: Any,
    observations: torch.Tensor,
    table: torch.Tensor,
    ids: torch.Tensor | None,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """Does what `SlotTransformer.forward` says."""
    m = trunk.n_state_tokens
    by_launches = switch.counts_launches(observations)
    if by_launches and any(p.requires_grad for p in trunk.parameters()):
        return _forward_trained(trunk, observations, table, ids, rows)
    (up, down), *layers = folded_layers(trunk)
    state = linear(gelu(linear(observations, *up)), *down).unflatten(-1, (m, -1))  # (B, M, D)

    def after_state(state_part: torch.Tensor, table_part: torch.Tensor) -> torch.Tensor:
        slots = table_part.expand(len(state), -1, -1) if ids is None else embedding(ids, table_part)
        return torch.cat([state_part, slots.to(state_part.dtype)], dim=1)  # (B, M + N, ...)

    x = after_state(state, table)
    for i, (block, (projection, *others)) in enumerate(zip(trunk.blocks, layers, strict=True)):
        n_heads, p = block.attention.n_heads, block.attention.dropout.rate
        if i > 0 or by_launches:
            mixed = attend(linear(_standardize(x), *projection), n_heads, p)
        else:
            state_part, table_part = (linear(_standardize(y), *projection) for y in (state, table))
            # A frozen trunk's dropout was first drawn in this order: seeds give the same numbers.
            heads_first = ids is None and not state_part.requires_grad
            mixed = attend(after_state(state_part, table_part), n_heads, p, heads_first)
        if i == len(layers) - 1:  # nothing reads what is left out here
            x, mixed = _slot_major(x, mixed, m, rows)
        x = _finish(x, mixed, others, block.dropout.rate)
    return x.transpose(0, 1)


def _forward_trained(
    trunk: Any,
    observations: torch.Tensor,
    table: torch.Tensor,
    ids: torch.Tensor | None,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """The same in few kernels where weights are trained: folding them again would take more."""
    m, device = trunk.n_state_tokens, observations.device.type
    # Observations are encoded already.
    parts = trunk.named_parameters()
    named = {name: p for name, p in parts if not name.startswith("images.")}
    parameters = tuple(named.values())
    dtype = table.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        parameters, table = _Rounded.apply(dtype, *parameters), table.to(dtype)  # type: ignore[no-untyped-call]
    weights = dict(zip(named, parameters, strict=True))

    def layer(name: str, y: torch.Tensor) -> torch.Tensor:
        return linear(y, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, y: torch.Tensor) -> torch.Tensor:
        return layer_norm(y, y.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    with torch.autocast(device, enabled=False):
        state = layer("state_encoder.2", gelu(layer("state_encoder.0", observations.to(dtype))))
        if ids is None:
            slots = table.expand(len(state), -1, -1)
        else:
            slots = table.index_select(0, ids.flatten()).unflatten(0, ids.shape)
        x = torch.cat([state.unflatten(-1, (m, -1)), slots], dim=1)
        for i, block in enumerate(trunk.blocks):
            name, p = f"blocks.{i}", block.dropout.rate
            attention = block.attention
            q = layer(f"{name}.attention.query", norm(f"{name}.query_norm", x))
            kv = layer(f"{name}.attention.key_value", norm(f"{name}.context_norm", x))
            rate = attention.dropout.rate
            mixed = attend_separately((q, *kv.chunk(2, -1)), attention.n_heads, rate)
            if i == len(trunk.blocks) - 1:
                x, mixed = _slot_major(x, mixed, m, rows)
            x = add_dropout(x, layer(f"{name}.attention.out", mixed), p)
            hidden = dropout(gelu(layer(f"{name}.ffn.1", norm(f"{name}.ffn.0", x))), p)
            x = add_dropout(x, layer(f"{name}.ffn.4", hidden), p)
    return x.transpose(0, 1)


class _Rounded(torch.autograd.Function):
    """Parameters in another type, and their gradients in float32, in one kernel each."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parameters: torch.Tensor) -> Any:
        rounded = [torch.empty_like(p, dtype=dtype) for p in parameters]
        torch._foreach_copy_(rounded, list(parameters))
        return tuple(rounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        exact = [torch.empty_like(g, dtype=torch.float32) for g in gradients]
        torch._foreach_copy_(exact, list(gradients))
        return None, *exact


def _finish(x: torch.Tensor, mixed: torch.Tensor, layers: list[Affine], p: float) -> torch.Tensor:
    """The rest of a block for tokens `(..., D)` and what they attended to `(..., D)`."""
    out, up, down = layers
    x = add_dropout(x, linear(mixed, *out), p)
    hidden = dropout(gelu(linear(_standardize(x), *up)), p)
    return add_dropout(x, linear(hidden, *down), p)


def _standardize(x: torch.Tensor) -> torch.Tensor:
    if switch.counts_launches(x):  # the sums are in float32 anyway, and the next product rounds
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, x.shape[-1:])
    return layer_norm(x, x.shape[-1:])


def _slot_major(
    x: torch.Tensor, mixed: torch.Tensor, m: int, rows: torch.Tensor | None
) -> list[torch.Tensor]:
    """Copies slots of `(B, M + N, D)` to `(N, B, D)`, as heads need it, or rows to `(N, C, D)`."""
    if rows is None:
        return [y[:, m:].transpose(0, 1).contiguous() for y in (x, mixed)]
    t = x.shape[1]
    slots = torch.arange(m, t, device=rows.device)[:, None]
    flat = torch.add(slots, rows.T, alpha=t).flatten()  # (N C,)
    return [y.flatten(0, 1).index_select(0, flat).unflatten(0, (t - m, -1)) for y in (x, mixed)]


def folded_layers(trunk: nn.Module) -> Layers:
    """What `forward` computes with: norms folded in, rounded as autocast has it.

    A frozen trunk's are kept until a parameter changes. A change is seen by the version counters:
    in-place operations and `load_state_dict` count, torch's fused optimizers and writing to
    `parameter.data` do not. So parameters that are trained are not kept, even where no gradients
    are asked for. A recorded CUDA graph holds those that it was recorded with: whoever replays it
    compares `state_of`.
    """
    parameters = list(trunk.parameters())
    device = parameters[0].device.type
    if any(p.requires_grad for p in parameters):
        return _fold(trunk, device)
    rounding = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    key = rounding, state_of(parameters)
    if trunk not in _frozen or _frozen[trunk][0] != key:
        # Training reads them too, which takes no tensors of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            _frozen[trunk] = key, _fold(trunk, device)
    return _frozen[trunk][1]


def state_of(parameters: Iterable[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Returns what is another one after a parameter was moved or changed."""
    return tuple((p.data_ptr(), p._version) for p in parameters)


def _fold(trunk: Any, device: str) -> Layers:
    if torch.is_autocast_enabled(device):  # what is made of weights is rounded once, at the end
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            layers = _fold(trunk, device)
        return [[Affine(w.to(dtype), b.to(dtype)) for w, b in group] for group in layers]
    state = (trunk.state_encoder[i] for i in (0, 2))
    layers = [[Affine(layer.weight, layer.bias) for layer in state]]
    for block in trunk.blocks:
        attention, (norm, up, _, _, down, _) = block.attention, block.ffn
        q = _after_norm(attention.query, block.query_norm)
        kv = _after_norm(attention.key_value, block.context_norm)
        projection = Affine(*(torch.cat(both) for both in zip(q, kv, strict=True)))
        out = Affine(attention.out.weight, attention.out.bias)
        layers.append([projection, out, _after_norm(up, norm), Affine(down.weight, down.bias)])
    return layers


def _after_norm(layer: nn.Linear, norm: nn.LayerNorm) -> Affine:
    """A linear layer that takes in the scale and shift of the normalization before it."""
    weight, bias = layer.weight, layer.bias
    return Affine(weight * norm.weight, bias + weight @ norm.bias)
