"""The Transformer written out plainly: what the fast formulation must equal and is timed against.

Every token goes through every block, each slot has its own small products in a loop, attention
is a softmax between two products and dropout is torch's. The functions read the parameters of
the modules they are given, so gradients end up there too.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy, dropout, gelu, linear

from spin_d3rlpy.asm.model import ActionStructureModel, Block, SlotHeads, SlotTransformer
from spin_d3rlpy.asm.objectives import MaskedActions
from spin_d3rlpy.policies import SlotPolicy


def plain_block(block: Block, tokens: torch.Tensor) -> torch.Tensor:
    """Maps tokens `(B, T, D)` to `(B, T, D)`."""
    attention, p = block.attention, block.dropout.p
    context = block.context_norm(tokens)
    q = attention.query(block.query_norm(tokens))
    weight_k, weight_v = attention.key_value.weight.chunk(2)
    bias_k, bias_v = attention.key_value.bias.chunk(2)
    k, v = linear(context, weight_k, bias_k), linear(context, weight_v, bias_v)
    # (B, T, D) to (B, H, T, D/H)
    q, k, v = (x.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    mixed = dropout(weights, attention.dropout, block.training) @ v
    mixed = attention.out(mixed.transpose(1, 2).flatten(2))
    x = tokens + dropout(mixed, p, block.training)
    norm, first, _, _, second, _ = block.ffn
    hidden = dropout(gelu(first(norm(x))), p, block.training)
    out: torch.Tensor = x + dropout(second(hidden), p, block.training)
    return out


def plain_features(
    trunk: SlotTransformer, observations: torch.Tensor, slot_tokens: list[torch.Tensor]
) -> torch.Tensor:
    """Returns slot features `(B, N, D)` for one `(B, D)` tensor of tokens per slot."""
    state = trunk.state_encoder(observations).unflatten(-1, (trunk.n_state_tokens, -1))
    tokens = torch.cat([state, torch.stack(slot_tokens, dim=1)], dim=1)
    for block in trunk.blocks:
        assert isinstance(block, Block)
        tokens = plain_block(block, tokens)
    return tokens[:, trunk.n_state_tokens :]


def plain_heads(heads: SlotHeads, features: torch.Tensor, nvec: list[int]) -> list[torch.Tensor]:
    """Returns one `(B, m_i)` tensor of logits per slot."""
    logits = []
    for i, m in enumerate(nvec):
        hidden = gelu(features[:, i] @ heads.weight1[i] + heads.bias1[i])
        hidden = dropout(hidden, heads.dropout, heads.training)
        logits.append(hidden @ heads.weight2[i, :, :m] + heads.bias2[i, :, :m])
    return logits


def plain_masked_action_loss(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
) -> torch.Tensor:
    """The loss of `spin_d3rlpy.asm.masked_action_loss`."""
    tables = asm.embedding.weight.split([m + 1 for m in asm.nvec])
    tokens = [table[ids] for table, ids in zip(tables, masked.tokens.unbind(1), strict=True)]
    logits = plain_heads(asm.heads, plain_features(asm.trunk, observations, tokens), asm.nvec)
    losses = [
        cross_entropy(slot_logits[chosen], slot_actions[chosen], reduction="sum")
        for slot_logits, slot_actions, chosen in zip(
            logits, actions.unbind(1), masked.selected.unbind(1), strict=True
        )
    ]
    return torch.stack(losses).sum() / masked.selected.sum()


def plain_log_prob(
    policy: SlotPolicy, observations: torch.Tensor, actions: torch.Tensor
) -> torch.Tensor:
    """`policy.log_prob`, `(B,)`."""
    features, b = policy.features, len(observations)
    tokens = [query.expand(b, -1) for query in features.queries()]
    logits = plain_heads(
        policy.heads, plain_features(features.trunk, observations, tokens), policy.layout.nvec
    )
    terms = [
        -cross_entropy(slot_logits, slot_actions, reduction="none")
        for slot_logits, slot_actions in zip(logits, actions.unbind(1), strict=True)
    ]
    return torch.stack(terms).sum(0)
