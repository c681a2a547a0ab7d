"""The trunk of `spin_d3rlpy.asm.model` in fewer and larger operations.

- Both norms before attention standardize the same vectors and differ only in scale and shift: that
  is done once, and scales and shifts are folded into the weights after them.
- Slot tokens are rows of a table, whose projections in the first block are computed once.
- Of the last block, only what is asked for is computed after attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.functional import embedding, gelu, layer_norm, linear

from spin_d3rlpy.fast.attention import attend
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
    (up, down), *layers = folded_layers(trunk)
    state = linear(gelu(linear(observations, *up)), *down).unflatten(-1, (m, -1))  # (B, M, D)

    def after_state(state_part: torch.Tensor, table_part: torch.Tensor) -> torch.Tensor:
        slots = table_part.expand(len(state), -1, -1) if ids is None else embedding(ids, table_part)
        return torch.cat([state_part, slots.to(state_part.dtype)], dim=1)  # (B, M + N, ...)

    x = after_state(state, table)
    for i, (block, (projection, *others)) in enumerate(zip(trunk.blocks, layers, strict=True)):
        n_heads, p = block.attention.n_heads, block.attention.dropout.rate
        if i > 0:
            mixed = attend(linear(_standardize(x), *projection), n_heads, p)
        else:
            state_part, table_part = (linear(_standardize(y), *projection) for y in (state, table))
            # A frozen trunk's dropout was first drawn in this order: seeds give the same numbers.
            heads_first = ids is None and not state_part.requires_grad
            mixed = attend(after_state(state_part, table_part), n_heads, p, heads_first)
        if i == len(layers) - 1:  # nothing reads what is left out here
            x, mixed = (_slot_major(y[:, m:], rows) for y in (x, mixed))
        x = _finish(x, mixed, others, block.dropout.rate)
    return x.transpose(0, 1)


def _finish(x: torch.Tensor, mixed: torch.Tensor, layers: list[Affine], p: float) -> torch.Tensor:
    """The rest of a block for tokens `(..., D)` and what they attended to `(..., D)`."""
    out, up, down = layers
    x = add_dropout(x, linear(mixed, *out), p)
    hidden = dropout(gelu(linear(_standardize(x), *up)), p)
    return add_dropout(x, linear(hidden, *down), p)


def _standardize(x: torch.Tensor) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:])


def _slot_major(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Copies `(B, N, D)` to `(N, B, D)`, as the heads need it, or the given rows to `(N, C, D)`."""
    if rows is None:
        return x.transpose(0, 1).contiguous()
    n = x.shape[1]
    flat = rows.T * n + torch.arange(n, device=rows.device)[:, None]  # (N, C)
    picked: torch.Tensor = x.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, (n, -1))
    return picked


def folded_layers(trunk: nn.Module) -> Layers:
    """What `forward` computes with: norms folded in, rounded as autocast has it.

    On CPUs a frozen trunk's are kept until a parameter changes. A change is seen by the version
    counters: in-place operations and `load_state_dict` count, torch's fused optimizers and writing
    to `parameter.data` do not. So parameters that are trained are not kept, even where no gradients
    are asked for. On other devices a recorded CUDA graph would not see the change.
    """
    parameters = list(trunk.parameters())
    device = parameters[0].device.type
    if device != "cpu" or any(p.requires_grad for p in parameters):
        return _fold(trunk, device)
    rounding = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    key = (rounding, *((p.data_ptr(), p._version) for p in parameters))
    if trunk not in _frozen or _frozen[trunk][0] != key:
        with torch.no_grad():
            _frozen[trunk] = key, _fold(trunk, device)
    return _frozen[trunk][1]


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
