from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.fast.attention import attend
from spin_d3rlpy.fast.dropout import dropout_factor


def projected(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(5, 7, 3 * 12, dtype=dtype, requires_grad=True)


def test_equals_torch_attention_in_both_directions() -> None:
    x = projected()
    wide = x.detach().double().requires_grad_()  # float64 goes through torch's attention
    ours, theirs = attend(x, 3, 0.0), attend(wide, 3, 0.0)
    torch.testing.assert_close(ours, theirs.float())
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad, wide.grad.float(), rtol=1e-4, atol=1e-6)


def assert_same_with_dropout(
    ours: torch.Tensor, tokens: torch.Tensor, factor: torch.Tensor, of: torch.Tensor, atol: float
) -> None:
    """Compares with attention of 3 heads written plainly, and its gradients of `of`."""
    q, k, v = tokens.unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    plain = (((q @ k.mT / 4**0.5).softmax(-1) * factor) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours, plain)
    weights = torch.randn_like(ours)
    ours_gradient, plain_gradient = (
        torch.autograd.grad((y * weights).sum(), of)[0] for y in (ours, plain)
    )
    torch.testing.assert_close(ours_gradient, plain_gradient, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropped_weights_are_dropped_in_both_directions(p: float, heads_first: bool) -> None:
    x = projected()
    torch.manual_seed(1)
    ours = attend(x, 3, p, heads_first)
    torch.manual_seed(1)
    if heads_first:
        factor = dropout_factor(torch.empty(3, 5, 7, 7), p).transpose(0, 1)
    else:
        factor = dropout_factor(torch.empty(5, 3, 7, 7), p)
    assert (factor == 0).any()
    assert_same_with_dropout(ours, x, factor, x, atol=1e-6)


def test_bfloat16_is_the_rounded_float32() -> None:
    x = projected()
    rounded = attend(x.bfloat16(), 3, 0.0).float()
    torch.testing.assert_close(rounded, attend(x, 3, 0.0), rtol=0.03, atol=0.03)
