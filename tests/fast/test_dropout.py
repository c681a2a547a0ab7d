from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.fast import dropout as dropout_module
from spin_d3rlpy.fast.dropout import Dropout, add_dropout, dropout, random_words


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_of_zeros_scale_and_gradient(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    n = 300_001  # not a multiple of the four entries that share a random number
    x = torch.ones(n, dtype=dtype, requires_grad=True)
    y = dropout(x, p)
    kept = y != 0
    scale = torch.tensor(1 / (1 - p), dtype=dtype)
    assert (y[kept] == scale).all()
    share = kept.double().mean().item()
    assert share == pytest.approx(1 / scale.item(), abs=4 * (p * (1 - p) / n) ** 0.5 + 2**-15)
    assert share == pytest.approx(1 - p, abs=0.01)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_neighbors_are_independent() -> None:
    torch.manual_seed(1)
    dropped = dropout(torch.ones(400_000), 0.3).view(-1, 4) == 0
    correlation = torch.corrcoef(dropped.T.double()) - torch.eye(4)
    assert correlation.abs().max() < 4 / 100_000**0.5
    following = dropped.flatten()
    assert torch.corrcoef(torch.stack([following[:-4], following[4:]]).double())[0, 1].abs() < 0.01


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_words_made_of_the_same_numbers_have_no_common_pattern(p: float) -> None:
    torch.manual_seed(2)
    lanes, n = 32, 8192
    # Each row of words is made of the same 8,192 numbers.
    words = random_words(lanes * n).view(torch.int16).view(lanes, n, 4)
    dropped = (words >= 2**15 - round(2**16 * p)).double()
    for field in ((dropped - p) / (p * (1 - p)) ** 0.5).unbind(-1):
        assert field.mean(1).abs().max() < 5 / n**0.5
        # Of two rows, and of two rows in two neighboring columns each.
        for x in (field, field[:, ::2] * field[:, 1::2]):
            pairs = (x @ x.T)[*torch.triu_indices(lanes, lanes, 1)] / x.shape[1] ** 0.5
            assert pairs.mean().abs() < 5 / len(pairs) ** 0.5
            assert pairs.std().item() == pytest.approx(1.0, rel=0.2)
            assert pairs.abs().max() < 8  # products of two rare events have a longer tail


def test_multipliers_keep_neighbors_apart() -> None:
    """What one word's lowest field says of another's: near choices never map to near ones."""
    base = int(dropout_module._MULTIPLIERS[1, 0]) % 2**16
    near = torch.arange(1, 100)
    for power in range(1, len(dropout_module._MULTIPLIERS)):
        mapped = near * pow(base, power, 2**16) % 2**16
        assert torch.minimum(mapped, 2**16 - mapped).min() > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("p", "share"), [(1e-6, 0.0), (1 - 1e-6, 1.0)])
def test_extreme_probabilities(dtype: torch.dtype, p: float, share: float) -> None:
    torch.manual_seed(5)
    zeros = (dropout(torch.ones(100_000, dtype=dtype), p) == 0).double().mean()
    assert zeros.item() == pytest.approx(share, abs=3e-4)


def test_the_share_of_zeros_varies_as_that_of_independent_entries() -> None:
    torch.manual_seed(3)
    n, p = 1_000, 0.1
    counts = torch.stack([(dropout(torch.ones(n), p) == 0).sum() for _ in range(2_000)])
    assert counts.double().mean().item() == pytest.approx(n * p, rel=0.01)
    assert counts.double().var().item() == pytest.approx(n * p * (1 - p), rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_adding_equals_dropout_then_addition(dtype: torch.dtype) -> None:
    x, y = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype)
    torch.manual_seed(4)
    added = add_dropout(x, y, 0.3)
    torch.manual_seed(4)
    # In one pass the sum is rounded once, else the dropped part is rounded, too.
    atol = 0.02 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(added, x + dropout(y, 0.3), atol=atol, rtol=1e-2)
    assert torch.equal(add_dropout(x, y, 0.0), x + y)


def test_nothing_is_dropped_in_evaluation_or_at_zero() -> None:
    x = torch.randn(10)
    module = Dropout(0.5)
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(dropout(x, 0.0), x)
    assert not torch.equal(module.train()(torch.ones(1000)), torch.ones(1000))


def test_seeds_decide() -> None:
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(dropout(torch.ones(1000), 0.5))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_other_types_are_left_to_torch() -> None:
    assert dropout(torch.ones(1000, dtype=torch.float64), 0.5).dtype == torch.float64
