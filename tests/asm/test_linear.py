from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from spin_d3rlpy import _compat
from spin_d3rlpy.asm import linear as module
from spin_d3rlpy.asm.linear import linear

needs_units = pytest.mark.skipif(
    _compat.onednn_linear() is None, reason="the CPU has no bfloat16 units, or torch no operator"
)


def layer(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shapes = (3, 70, 16), (24, 16), (24,)
    x, weight, bias = (torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    return x, weight, bias


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_units), torch.float64]
)
def test_equals_torch_in_both_directions(dtype: torch.dtype) -> None:
    tensors = layer(dtype)
    ours, theirs = linear(*tensors), functional.linear(*tensors)
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
    assert [t is None for t in out.grad_fn.saved_tensors] == [True, False]
    out.sum().backward()
    assert x.grad is not None


@needs_units
def test_is_torchs_layer_where_the_operator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = layer(torch.bfloat16)
    ours = linear(*tensors)
    monkeypatch.setattr(module, "onednn_linear", lambda: None)
    torchs = linear(*tensors)
    assert ours.grad_fn is not None
    assert torchs.grad_fn is not None
    assert "_Linear" in ours.grad_fn.name()
    assert "_Linear" not in torchs.grad_fn.name()
    assert torch.equal(torchs, functional.linear(*tensors))
