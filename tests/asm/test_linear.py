from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from spin_d3rlpy import _compat
from spin_d3rlpy.asm import linear as module
from spin_d3rlpy.asm.linear import linear
from spin_d3rlpy.precision import autocast

needs_units = pytest.mark.skipif(
    _compat.onednn_linear(torch.bfloat16) is None,
    reason="the CPU has no bfloat16 units, or torch no such operator",
)
needs_onednn = pytest.mark.skipif(
    not _compat.onednn_multiplies_float32(), reason="float32 products are not left to oneDNN here"
)


def layer(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shapes = (3, 70, 16), (24, 16), (24,)
    x, weight, bias = (torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    return x, weight, bias


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, marks=needs_onednn),
        pytest.param(torch.bfloat16, marks=needs_units),
        torch.float64,
    ],
)
def test_equals_torch_in_both_directions(dtype: torch.dtype) -> None:
    tensors = layer(dtype)
    with _compat.float32_products_by_onednn():
        ours = linear(*tensors)
    theirs = functional.linear(*tensors)
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-6
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    weights = torch.randn_like(ours)
    for mine, its in zip(
        torch.autograd.grad((ours * weights).sum(), tensors),
        torch.autograd.grad((theirs * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(
            mine, its, rtol=tolerance, atol=tolerance * its.abs().max().item()
        )


@needs_units
def test_frozen_weights_are_not_kept_for_gradients_that_nothing_asks_for() -> None:
    x, weight, bias = layer(torch.bfloat16)
    out = linear(x, weight.detach(), bias.detach())
    assert out.grad_fn is not None
    saved = out.grad_fn.saved_tensors  # type: ignore[attr-defined]
    assert [t is None for t in saved] == [True, False]
    out.sum().backward()
    assert x.grad is not None


@needs_onednn
def test_float32_is_left_to_onednn_only_where_that_is_faster() -> None:
    tensors = layer(torch.float32)
    with _compat.float32_products_by_onednn():
        ours = linear(*tensors)
    assert ours.grad_fn is not None
    assert "_Linear" in ours.grad_fn.name()
    assert torch.equal(linear(*tensors), functional.linear(*tensors))
    with autocast("cpu", "bfloat16"):
        assert linear(*tensors).dtype == torch.bfloat16


@needs_units
def test_is_torchs_layer_where_the_operator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = layer(torch.bfloat16)
    ours = linear(*tensors)
    monkeypatch.setattr(module, "onednn_linear", lambda _: None)
    torchs = linear(*tensors)
    assert ours.grad_fn is not None
    assert torchs.grad_fn is not None
    assert "_Linear" in ours.grad_fn.name()
    assert "_Linear" not in torchs.grad_fn.name()
    assert torch.equal(torchs, functional.linear(*tensors))
