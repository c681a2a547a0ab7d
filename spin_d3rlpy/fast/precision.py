"""The number format that training steps compute in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from spin_d3rlpy import fast
from spin_d3rlpy.fast.cpu import (
    float32_products_by_onednn,
    multiplies_faster_in_bfloat16,
    onednn_multiplies_float32,
)

Precision = Literal["float32", "bfloat16", "tf32", "auto"]

# From how many rows of products on oneDNN acts faster than MKL, where it does: with few rows
# calling it costs more than the products. For a Transformer it is 60, for factored policies 128.
MANY_ROWS = 64


def is_bfloat16(device: torch.device | str, precision: Precision) -> bool:
    """Whether a precision means bfloat16 on a device."""
    if precision == "auto":
        on_gpu = torch.device(device).type == "cuda"
        return torch.cuda.is_bf16_supported(False) if on_gpu else multiplies_faster_in_bfloat16()
    return precision == "bfloat16"


@contextlib.contextmanager
def autocast(device: torch.device | str, precision: Precision) -> Iterator[None]:
    """Context in which losses and their gradients are computed.

    In bfloat16, factors of matrix products (except output layers, see `in_float32`) are rounded to
    8 significant bits; weights, normalizations and optimizers stay in float32. `"auto"` is bfloat16
    on GPUs with units for it and on CPUs that multiply faster in it, float32 elsewhere. `"tf32"`
    leaves everything in float32, of which a GPU's units for products read 11 significant bits; on a
    CPU it is float32. Rounded weights are not cached, because an update or a graph replay changes
    weights within the context.
    """
    kind, enabled = torch.device(device).type, is_bfloat16(device, precision)
    with (
        torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False),
        fast_products(device),
        _tf32_products() if precision == "tf32" and kind == "cuda" else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _tf32_products() -> Iterator[None]:
    """GPUs multiply in TensorFloat-32, in this context only."""
    users, name, value = tf32_settings()
    before = [getattr(user, name) for user in users]
    try:
        for user in users:
            setattr(user, name, value)
        yield
    finally:
        for user, precision in zip(users, before, strict=True):
            setattr(user, name, precision)


def tf32_settings() -> tuple[list[Any], str, object]:
    """Returns torch's users of TensorFloat-32, their setting's name and the value that allows it.

    torch warns where a program uses both names of the setting; versions such as 2.6 have one.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "rnn"):
        return [products, cudnn.rnn], "fp32_precision", "tf32"
    return [products, cudnn], "allow_tf32", True


def fast_products(
    device: torch.device | str, n_rows: int | None = None
) -> contextlib.AbstractContextManager[None]:
    """Context for float32 products by torch's faster library, unless `n_rows` is small."""
    many = n_rows is None or n_rows >= MANY_ROWS
    if many and fast.is_on() and torch.device(device).type == "cpu" and onednn_multiplies_float32():
        return float32_products_by_onednn()
    return contextlib.nullcontext()


def backward(loss: torch.Tensor) -> None:
    """`loss.backward()` within `autocast`, every product in the type of its forward product.

    Autocast would also round factors of output layers' gradients.
    """
    with torch.autocast(loss.device.type, enabled=False):
        loss.backward(fast.losses.one(loss.device) if fast.switch.counts_launches(loss) else None)


def in_float32(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Applies an output layer in float32 within `autocast`.

    Losses are differences of outputs (temporal-difference errors, log-softmax), which would lose
    most of their digits in bfloat16.
    """
    rounds = torch.is_autocast_enabled(x.device.type)  # also where what is below was in float32
    if x.dtype != torch.bfloat16 and not rounds:
        return layer(x)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


def outputs_of(networks: Sequence[tuple[nn.Module, nn.Linear]], x: Any) -> torch.Tensor:
    """Returns what encoders and the output layers on them make of observations, `(E, B, out)`."""
    if isinstance(x, torch.Tensor) and fast.switch.counts_launches(x):
        candidates = [fast.mlp.linear_layers(encoder, head) for encoder, head in networks]
        members = [network for network in candidates if network is not None]
        if len(members) == len(candidates):
            return fast.mlp.relu_mlps(x, [layers for layers, _ in members], members[0][1])
    outputs = [in_float32(head, encoder(x)) for encoder, head in networks]
    return outputs[0][None] if len(outputs) == 1 else torch.stack(outputs)
