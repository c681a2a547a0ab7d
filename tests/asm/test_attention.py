from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.asm.attention import attend, attend_with_shared
from spin_d3rlpy.asm.dropout import dropout_factor


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


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropped_weights_are_dropped_in_both_directions(p: float) -> None:
    x = projected()
    torch.manual_seed(1)
    ours = attend(x, 3, p)
    torch.manual_seed(1)
    factor = dropout_factor(torch.empty(5, 3, 7, 7), p)
    assert (factor == 0).any()
    assert_same_with_dropout(ours, x, factor, x, atol=1e-6)


def test_bfloat16_is_the_rounded_float32() -> None:
    x = projected()
    rounded = attend(x.bfloat16(), 3, 0.0).float()
    torch.testing.assert_close(rounded, attend(x, 3, 0.0), rtol=0.03, atol=0.03)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("n_own", [1, 2])
def test_sharing_tokens_changes_nothing(n_own: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    own = torch.randn(5, n_own, 3 * 12).to(dtype)
    shared = torch.randn(6, 3 * 12, requires_grad=True)
    ours = attend_with_shared(own, shared, 3, 0.0)
    rounded = shared.to(dtype).double()
    theirs = attend(torch.cat([own.double(), rounded.expand(5, -1, -1)], dim=1), 3, 0.0)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    weights = torch.randn_like(theirs)
    ours_gradient, theirs_gradient = (
        torch.autograd.grad((y * weights).sum(), shared)[0] for y in (ours, theirs)
    )
    atol = tolerance * theirs_gradient.abs().max().item()
    torch.testing.assert_close(ours_gradient, theirs_gradient, rtol=tolerance, atol=atol)


def test_shared_tokens_weights_are_dropped_row_by_row_in_both_directions() -> None:
    torch.manual_seed(0)
    own, shared = torch.randn(5, 1, 3 * 12), torch.randn(6, 3 * 12, requires_grad=True)
    torch.manual_seed(1)
    ours = attend_with_shared(own, shared, 3, 0.3)
    torch.manual_seed(1)
    factor = dropout_factor(torch.empty(3, 5, 7, 7), 0.3).transpose(0, 1)
    both = torch.cat([own, shared.expand(5, -1, -1)], dim=1)
    assert_same_with_dropout(ours, both, factor, shared, atol=1e-5)


def test_own_tokens_that_are_trained_get_gradients() -> None:
    torch.manual_seed(0)
    own = torch.randn(5, 1, 3 * 12, requires_grad=True)
    attend_with_shared(own, torch.randn(6, 3 * 12), 3, 0.1).sum().backward()
    assert own.grad is not None
    assert own.grad.abs().sum() > 0
