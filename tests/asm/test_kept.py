from __future__ import annotations

import copy

import pytest
import torch

from spin_d3rlpy.asm import TransformerConfig
from spin_d3rlpy.asm.kept import Kept
from spin_d3rlpy.asm.model import SlotTransformer
from spin_d3rlpy.precision import autocast


@pytest.fixture
def trunk() -> SlotTransformer:
    torch.manual_seed(0)
    config = TransformerConfig(width=8, n_blocks=2, n_heads=2, dropout=0.0, attention_dropout=0.0)
    return SlotTransformer(3, config).requires_grad_(False)


def _new_weights(trunk: SlotTransformer, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {k: torch.randn_like(v) for k, v in trunk.state_dict().items()}


def test_frozen_weights_are_computed_once() -> None:
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    kept: Kept[torch.Tensor] = Kept()
    first = kept.get([parameter], lambda: parameter * 2)
    assert kept.get([parameter], lambda: parameter * 2) is first
    parameter.mul_(5)
    assert torch.equal(kept.get([parameter], lambda: parameter * 2), torch.full((3,), 10.0))


def test_a_changed_weight_or_precision_is_seen(trunk: SlotTransformer) -> None:
    x, table = torch.randn(4, 3), torch.randn(5, 8)
    before = trunk(x, table)
    with autocast("cpu", "bfloat16"):
        rounded = trunk(x, table)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(trunk(x, table), before)
    trunk.load_state_dict(_new_weights(trunk, 1))
    fresh = SlotTransformer(3, TransformerConfig(width=8, n_blocks=2, n_heads=2))
    fresh.eval().requires_grad_(False)
    fresh.load_state_dict(trunk.state_dict())
    assert torch.equal(trunk.eval()(x, table), fresh(x, table))
    with autocast("cpu", "bfloat16"):
        assert torch.equal(trunk(x, table), fresh(x, table))
    other = copy.deepcopy(trunk)
    other.load_state_dict(_new_weights(trunk, 2))
    assert torch.equal(trunk(x, table), fresh(x, table))
    assert not torch.equal(other(x, table), fresh(x, table))


def test_trained_weights_are_not_kept_even_without_gradients(trunk: SlotTransformer) -> None:
    # torch's fused optimizers change parameters without counting it.
    trunk.requires_grad_(True)
    optim = torch.optim.Adam(trunk.parameters(), lr=0.1, fused=True)
    x, table = torch.randn(4, 3), torch.randn(5, 8)
    with torch.no_grad():
        before = trunk(x, table)
    trunk(x, table).square().sum().backward()
    optim.step()
    with torch.no_grad():
        assert not torch.allclose(trunk(x, table), before)
