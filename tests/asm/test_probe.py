from __future__ import annotations

import math

import pytest
import torch

from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig
from spin_d3rlpy.asm.model import Block
from spin_d3rlpy.asm.probe import ProbeConfig, attention_maps, linear_probe

SIZES = TransformerConfig(width=16, n_blocks=2, n_heads=2, head_hidden=16)
QUICK = ProbeConfig(n_updates=300, batch_size=256, test_rows=4096)


class FromState:
    """Slot 0 (of 2) is the sign of the first observation, slot 1 (of 4) is noise."""

    transition_count = 1000

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(batch_size, 3)
        return x, torch.stack([(x[:, 0] > 0).long(), torch.randint(4, (batch_size,))], 1)


def test_a_probe_finds_what_is_linear_in_the_features_and_nothing_more() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(3, [2, 4], SIZES).train()
    before = {k: v.clone() for k, v in asm.state_dict().items()}
    result = linear_probe(asm, FromState(), FromState(), QUICK)
    assert all(torch.equal(before[k], v) for k, v in asm.state_dict().items())
    assert asm.training
    # Slot 0 is nearly always right, slot 1 a quarter of the time.
    assert result.slot == pytest.approx((0.97 + 0.25) / 2, abs=0.035)
    assert result.exact == pytest.approx(result.independent, abs=0.02)
    assert result.uniform_slot == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert result.uniform_exact == pytest.approx(1 / 8)


class Together(FromState):
    """Both slots are right or wrong together: they are the same bit, half of it noise."""

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(batch_size, 3)
        bit = ((x[:, 0] + torch.randn(batch_size)) > 0).long()
        return x, bit[:, None].expand(-1, 2)


def test_exact_matches_beyond_independence_show_structure() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(3, [2, 2], SIZES)
    result = linear_probe(asm, Together(), Together(), QUICK)
    assert result.exact > result.independent + 0.1


def test_attention_maps_are_the_weights_that_the_trunk_uses() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(3, [2, 4], SIZES).train()
    x, tokens = torch.randn(5, 3), torch.tensor([[0, 4]]).expand(5, -1)
    maps = attention_maps(asm, x, tokens)
    assert maps.shape == (2, 2, 3, 3)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 3))
    # Block 0, head 1 computed directly, one row at a time.
    asm.eval()
    block = asm.transformer.blocks[0]
    assert isinstance(block, Block)
    by_hand = []
    for b in range(5):
        slots = asm.embedding(tokens[b] + asm.row_offsets)
        z = torch.cat([asm.transformer.state_encoder(x[b : b + 1]), slots])
        q = block.attention.query(block.query_norm(z))[:, 8:]
        k = block.attention.key_value(block.context_norm(z))[:, 8:16]
        by_hand.append((q @ k.T / math.sqrt(8)).softmax(-1))
    torch.testing.assert_close(maps[0, 1], torch.stack(by_hand).mean(0))
