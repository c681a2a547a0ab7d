"""Networks and IQL written out plainly: what the fast code must equal and is timed against.

In float32, every token goes through every block, each slot has its own small products in a loop,
attention is a softmax between two products, dropout and Adam are torch's. The functions read the
parameters of the modules they are given, so gradients end up there too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.torch_utility import TorchMiniBatch
from torch.nn.functional import cross_entropy, dropout, gelu, linear

from spin_d3rlpy.asm.model import ActionStructureModel, Block, SlotHeads, SlotTransformer
from spin_d3rlpy.asm.objectives.masked import MaskedActions
from spin_d3rlpy.critics import FactoredCritic
from spin_d3rlpy.policies import AutoregressivePolicy, FactoredPolicy, Policy, SlotPolicy
from spin_d3rlpy.policies.slot import QueryFeatures


def plain_block(block: Block, tokens: torch.Tensor) -> torch.Tensor:
    """Maps tokens `(B, T, D)` to `(B, T, D)`."""
    attention, p = block.attention, block.dropout
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


def plain_logits(
    policy: Policy, observations: torch.Tensor, actions: torch.Tensor
) -> list[torch.Tensor]:
    """Returns one `(B, m_i)` tensor of logits per slot, given the actions before it."""
    nvec = policy.layout.nvec
    if isinstance(policy, SlotPolicy):
        features = policy.features
        assert isinstance(features, QueryFeatures)
        tokens = [query.expand(len(observations), -1) for query in features.queries()]
        return plain_heads(policy.heads, plain_features(features.trunk, observations, tokens), nvec)
    if isinstance(policy, FactoredPolicy):
        hidden = policy.encoder(observations)
        weights, biases = policy.heads.weight.split(nvec), policy.heads.bias.split(nvec)
        return [linear(hidden, w, b) for w, b in zip(weights, biases, strict=True)]
    assert isinstance(policy, AutoregressivePolicy)
    state = policy.state_encoder(observations)
    before = torch.full_like(actions[:, 0], policy.start)
    inputs = []
    for chosen in actions.unbind(1):
        inputs.append(torch.cat([state, policy.embedding(before)], dim=-1))
        before = chosen
    hidden, _ = policy.lstm(torch.stack(inputs))
    weight, bias = policy.heads.weight, policy.heads.bias
    return [hidden[i] @ weight[i, :, :m] + bias[i, :, :m] for i, m in enumerate(nvec)]


def plain_log_prob(
    policy: Policy, observations: torch.Tensor, actions: torch.Tensor
) -> torch.Tensor:
    """`policy.log_prob`, `(B,)`."""
    terms = [
        -cross_entropy(slot_logits, slot_actions, reduction="none")
        for slot_logits, slot_actions in zip(
            plain_logits(policy, observations, actions), actions.unbind(1), strict=True
        )
    ]
    return torch.stack(terms).sum(0)


def plain_q_values(
    critic: FactoredCritic, observations: Any, actions: torch.Tensor, nvec: Sequence[int]
) -> list[torch.Tensor]:
    """`Q_e(s, a)` of every member, `(B,)` each: the sum over slots."""
    values = []
    for q in critic:
        slots = q(observations).split(list(nvec), dim=1)
        chosen = [u.gather(1, a[:, None]) for u, a in zip(slots, actions.unbind(1), strict=True)]
        values.append(torch.cat(chosen, dim=1).sum(1))
    return values


class PlainIQL:
    """IQL's update with torch's own optimizers, on the networks of one of our algorithms.

    Args:
        algo: a built algorithm with IQL's networks; they are trained in place.
    """

    def __init__(self, algo: Any) -> None:
        self.modules, self.config = algo.impl.modules, algo.config
        policy = self.modules.policy
        parameters = [p for _, module in policy.trainable_modules() for p in module.parameters()]
        self.actor_optim = torch.optim.Adam(parameters, self.config.actor_learning_rate)
        rate = self.config.critic_learning_rate
        self.critic_optims = [torch.optim.Adam(q.parameters(), rate) for q in self.modules.q_funcs]
        self.value_optim = torch.optim.Adam(self.modules.value_func.parameters(), rate)

    def update(self, batch: TorchMiniBatch) -> dict[str, float]:
        """One step of V, then Q, then the policy, then the target critic."""
        modules, config = self.modules, self.config
        modules.policy.train()
        observations: Any = batch.observations
        actions, nvec = batch.actions, config.nvec
        with torch.no_grad():
            target = torch.minimum(
                *plain_q_values(modules.targ_q_funcs, observations, actions, nvec)
            )
        advantage = target - modules.value_func(observations)
        weight = torch.where(advantage < 0, 1 - config.expectile, config.expectile)
        value_loss = (weight * advantage**2).mean()
        _step(self.value_optim, value_loss)

        with torch.no_grad():
            following = modules.value_func(batch.next_observations)[:, None]
            y = batch.rewards + config.gamma * (1 - batch.terminals) * following
        losses = []
        values = plain_q_values(modules.q_funcs, observations, actions, nvec)
        for optim, value in zip(self.critic_optims, values, strict=True):
            losses.append(((value - y[:, 0]) ** 2).mean())
            _step(optim, losses[-1])

        weight = (config.weight_temp * advantage.detach()).exp().clamp(max=config.max_weight)
        actor_loss = -(weight * plain_log_prob(modules.policy, observations, actions)).mean()
        _step(self.actor_optim, actor_loss)

        with torch.no_grad():
            for mine, online in zip(
                modules.targ_q_funcs.parameters(), modules.q_funcs.parameters(), strict=True
            ):
                mine.copy_(config.tau * online + (1 - config.tau) * mine)
        return {
            "critic_loss": sum(loss.item() for loss in losses),
            "value_loss": value_loss.item(),
            "actor_loss": actor_loss.item(),
        }


def _step(optim: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optim.zero_grad()
    loss.backward()
    optim.step()
