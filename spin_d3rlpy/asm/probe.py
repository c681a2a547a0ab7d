"""Analysis of a frozen trunk: linear probes of its features, and attention maps."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy import fast
from spin_d3rlpy.asm.model import ActionStructureModel, Block
from spin_d3rlpy.asm.pretraining import StateActionSource
from spin_d3rlpy.training.schedules import cosine_decay


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
    """How the probe is trained (by Adam) and tested.

    Args:
        n_updates: gradient steps.
        batch_size: rows of an update, drawn with replacement.
        learning_rate: of the first step; it decays to zero along a cosine.
        test_rows: rows drawn from the held-out data.
    """

    n_updates: int = 2_000
    batch_size: int = 1024
    learning_rate: float = 3e-3
    test_rows: int = 16_384


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """Accuracies on held-out data, from 0 to 1."""

    slot: float  # share of slots predicted right
    exact: float  # share of rows with all slots right
    # `exact` if slots were right independently, the product of their accuracies: less than `exact`
    # shows structure.
    independent: float
    uniform_slot: float  # `slot` of uniform guessing
    uniform_exact: float


def linear_probe(
    asm: ActionStructureModel,
    source: StateActionSource,
    held_out: StateActionSource,
    config: ProbeConfig | None = None,
) -> ProbeResult:
    """Predicts actions linearly from slot features of the fully masked action (SPIN, section 6).

    The trunk's input is the state and the mask tokens, as at the start of stage 2. The trunk does
    not change. `held_out` is the test data.
    """
    config = config or ProbeConfig()
    was_training = asm.training
    asm.eval()

    def draw(where: StateActionSource, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        observations, actions = where.sample_observations_and_actions(n)
        with torch.no_grad():
            features = asm.trunk(asm.network_input(observations), asm.mask_embeddings)
            return features.expand(-1, asm.slot_layout.n_slots, -1), actions

    slot_layout = asm.slot_layout
    first = draw(source, config.batch_size)[0]  # (B, N, D)
    mean, scale = first.mean(0), first.std(0) + 1e-6
    n, d, k = slot_layout.n_slots, first.shape[-1], slot_layout.max_choices
    weight = torch.zeros(n, d, k, device=first.device, requires_grad=True)
    bias = torch.zeros(n, 1, k, device=first.device, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=config.learning_rate)
    schedule = cosine_decay(optimizer, config.n_updates)

    def logits(features: torch.Tensor) -> torch.Tensor:
        standardized = ((features - mean) / scale).transpose(0, 1)
        split = torch.baddbmm(bias, standardized, weight).transpose(0, 1)
        return split.masked_fill(slot_layout.padding, -torch.inf)

    for _ in range(config.n_updates):
        features, actions = draw(source, config.batch_size)
        loss = cross_entropy(logits(features).flatten(0, 1), actions.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    right = []
    with torch.no_grad():
        for _ in range(-(-config.test_rows // config.batch_size)):
            features, actions = draw(held_out, config.batch_size)
            right.append(logits(features).argmax(-1) == actions)
    asm.train(was_training)
    hit = torch.cat(right)  # (rows, N)
    per_slot = hit.double().mean(0)
    chance = 1.0 / asm.mask_ids.double()
    return ProbeResult(
        slot=float(per_slot.mean()),
        exact=float(hit.all(1).double().mean()),
        independent=float(per_slot.prod()),
        uniform_slot=float(chance.mean()),
        uniform_exact=float(chance.prod()),
    )


@torch.no_grad()
def attention_maps(
    asm: ActionStructureModel, observations: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Returns attention weights `(blocks, H, T, T)`, averaged over the batch, without dropout.

    Entry `[l, h, i, j]` is the weight of token j in head h's output for token i in block l. The
    first M tokens are the state's, the others the slots'. `tokens` `(B, N)` are choices or masks.
    """
    was_training = asm.training
    asm.eval()
    maps: list[torch.Tensor] = []
    hooks = [
        block.attention.dropout.register_forward_pre_hook(lambda _, x: maps.append(x[0].mean(0)))
        for block in cast("list[Block]", list(asm.transformer.blocks))
    ]
    with fast.plain():
        asm(asm.network_input(observations), tokens)
    for hook in hooks:
        hook.remove()
    asm.train(was_training)
    return torch.stack(maps)
