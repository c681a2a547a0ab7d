from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spin_d3rlpy.asm import ActionStructureModel, MLPConfig, TransformerConfig
from spin_d3rlpy.asm.model import Block, SlotHeads

NVEC = [3, 5, 2]
CONFIG = TransformerConfig(width=12, n_blocks=2, n_heads=3, n_state_tokens=2, head_hidden=7)


@pytest.fixture
def asm() -> ActionStructureModel:
    torch.manual_seed(0)
    return ActionStructureModel(11, NVEC, CONFIG).eval()


def test_logits_are_flat_with_one_per_choice(asm: ActionStructureModel) -> None:
    tokens = torch.tensor([[0, 4, 1], [3, 5, 2], [2, 0, 0], [1, 1, 1]])
    assert asm(torch.randn(4, 11), tokens).shape == (4, 10)


def test_defaults_are_the_published_sizes() -> None:
    config = TransformerConfig()
    assert (config.width, config.n_blocks, config.n_heads, config.head_hidden) == (256, 3, 4, 128)
    assert (config.n_state_tokens, config.dropout, config.attention_dropout) == (1, 0.1, 0.1)


def test_heads_must_divide_width() -> None:
    with pytest.raises(ValueError, match="divide width=10"):
        TransformerConfig(width=10, n_heads=4)


def test_block_equals_torch_multihead_attention() -> None:
    """The block, rebuilt from torch's own modules with the same weights."""
    torch.manual_seed(1)
    block = Block(CONFIG).eval()
    for p in block.parameters():
        nn.init.normal_(p, std=0.5)
    d = CONFIG.width
    reference = nn.MultiheadAttention(d, CONFIG.n_heads, batch_first=True).eval()
    attention = block.attention
    with torch.no_grad():
        reference.in_proj_weight.copy_(
            torch.cat([attention.query.weight, attention.key_value.weight])
        )
        reference.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key_value.bias]))
        reference.out_proj.load_state_dict(attention.out.state_dict())
        x = torch.randn(4, 5, d)
        context = block.context_norm(x)
        h = x + reference(block.query_norm(x), context, context, need_weights=False)[0]
        h = h + block.ffn(h)
        torch.testing.assert_close(block(x), h, rtol=1e-5, atol=1e-5)


def test_heads_equal_one_mlp_per_slot() -> None:
    torch.manual_seed(3)
    heads = SlotHeads(NVEC, CONFIG).eval()
    features = torch.randn(4, 3, CONFIG.width)
    expected = []
    for i, m in enumerate(NVEC):
        hidden = nn.functional.gelu(features[:, i] @ heads.weight1[i] + heads.bias1[i])
        expected.append((hidden @ heads.weight2[i] + heads.bias2[i])[:, :m])
    torch.testing.assert_close(heads(features), torch.cat(expected, 1))


def test_permuting_slots_with_their_tables_permutes_the_output(asm: ActionStructureModel) -> None:
    order = [2, 0, 1]
    permuted = ActionStructureModel(11, [NVEC[i] for i in order], CONFIG).eval()
    permuted.trunk.load_state_dict(asm.trunk.state_dict())
    rows = torch.split(asm.embedding.weight, [m + 1 for m in NVEC])
    with torch.no_grad():
        permuted.embedding.weight.copy_(torch.cat([rows[i] for i in order]))
        for name, parameter in permuted.heads.named_parameters():
            parameter.copy_(asm.heads.get_parameter(name)[order])
    observations = torch.randn(4, 11)
    tokens = torch.tensor([[0, 4, 1], [3, 5, 2], [2, 0, 0], [1, 1, 1]])
    by_slot = torch.split(asm(observations, tokens), NVEC, dim=1)
    expected = torch.cat([by_slot[i] for i in order], 1)
    torch.testing.assert_close(
        permuted(observations, tokens[:, order]), expected, rtol=1e-4, atol=1e-5
    )


def test_every_slot_sees_the_state_and_the_other_slots(asm: ActionStructureModel) -> None:
    observations, tokens = torch.randn(1, 11), torch.tensor([[0, 4, 1]])
    base = torch.split(asm(observations, tokens), NVEC, dim=1)
    other_state = torch.split(asm(observations + 1, tokens), NVEC, dim=1)
    other_slot = torch.split(asm(observations, torch.tensor([[0, 4, 0]])), NVEC, dim=1)
    for i in range(3):
        assert not torch.allclose(base[i], other_state[i])
        assert not torch.allclose(base[i], other_slot[i])


def test_mask_tokens_are_each_slots_last_row(asm: ActionStructureModel) -> None:
    assert asm.mask_ids.tolist() == NVEC
    table = asm.embedding.weight
    assert len(table) == sum(NVEC) + 3
    assert torch.equal(asm.mask_embeddings, table[[3, 9, 12]])


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    "config",
    [MLPConfig(width=16), TransformerConfig(width=16, n_blocks=2, n_heads=2, head_hidden=16)],
    ids=["mlp", "transformer"],
)
def test_a_trace_takes_batches_of_any_size(config: Any) -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(4, [3, 2, 4], config).eval()

    def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 4), (torch.rand(n, 3) * (asm.mask_ids + 1)).long()

    traced = torch.jit.trace(asm, rows(2))  # its warnings of constants are errors here
    for n in (1, 2, 7):
        batch = rows(n)
        assert torch.allclose(traced(*batch), asm(*batch), atol=1e-6)


def test_only_a_model_with_attention_has_a_transformer() -> None:
    asm = ActionStructureModel(4, [3, 2], MLPConfig(width=16))
    assert not hasattr(asm, "transformer")
    assert hasattr(ActionStructureModel(4, [3, 2]), "transformer")
    with pytest.raises(AttributeError, match=r"with attention.*MLPConfig.*TransformerConfig"):
        _ = asm.transformer
    with pytest.raises(AttributeError, match="no attribute 'transformers'"):
        _ = asm.transformers
