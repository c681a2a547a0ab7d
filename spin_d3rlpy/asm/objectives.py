"""Masked action modelling (MAM): hide some sub-actions, predict them from the rest."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.model import ActionStructureModel


class MaskedActions(NamedTuple):
    """What the model sees and what it must predict.

    Args:
        tokens: `(B, N)` input tokens.
        selected: `(B, N)` True where the slot carries loss.
        capacity: no slot is selected in more rows than this.
    """

    tokens: torch.Tensor
    selected: torch.Tensor
    capacity: int


class MaskedActionLoss(NamedTuple):
    """Loss and accuracy over the selected slots.

    Args:
        loss: scalar.
        accuracy: scalar, share of selected slots whose most likely choice is right.
    """

    loss: torch.Tensor
    accuracy: torch.Tensor


def mask_actions(
    actions: torch.Tensor,
    mask_ids: torch.Tensor,
    mask_prob: float = 0.15,
    mask_token_share: float = 0.8,
    random_share: float = 0.1,
) -> MaskedActions:
    """Selects slots at random and corrupts their tokens (SPIN, section 4.1).

    Each slot of each row is selected with probability `mask_prob`, at least one in the batch. A
    selected slot's token becomes the mask token, a uniformly random choice, or stays.

    Args:
        actions: `(B, N)` integer choices.
        mask_ids: each slot's mask token, `(N,)`.
        mask_prob: probability of selection.
        mask_token_share: share of selected slots that get the mask token.
        random_share: share of selected slots that get a random choice.
    """
    # One draw decides both: below p is selected, and where below p says what becomes of it.
    u = torch.rand(actions.shape, device=actions.device)
    # The smallest draw counts as selected, so that no batch is without loss. No host sync.
    selected = (u < mask_prob) | (u == u.min())
    masked = u < mask_prob * mask_token_share
    randomized = selected & ~masked & (u < mask_prob * (mask_token_share + random_share))
    choice = (torch.rand_like(u) * mask_ids).long()
    tokens = torch.where(masked, mask_ids, torch.where(randomized, choice, actions))
    return MaskedActions(tokens, selected, row_capacity(len(actions), mask_prob))


def row_capacity(n_rows: int, mask_prob: float) -> int:
    """More rows than a slot is ever selected in: six standard deviations above the mean.

    A fixed number, because counting would make every step wait for the device. The odds that a
    slot exceeds it (and that a selected entry then carries no loss) are below 1e-7 a step.
    """
    mean = n_rows * mask_prob
    return min(n_rows, math.ceil(mean + 6 * math.sqrt(mean * (1 - mask_prob)) + 6))


def masked_action_loss(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
) -> MaskedActionLoss:
    """Mean cross-entropy over the selected slots (the paper's text has the sum).

    Args:
        asm: the model.
        observations: `(B, obs)`.
        actions: `(B, N)` true choices.
        masked: what `mask_actions` made of them.
    """
    # Only what carries loss goes through the last block's second half and the heads.
    selected, rows = masked.selected.float().topk(masked.capacity, dim=0, sorted=False)  # (C, N)
    logits = asm.layout.split(asm(observations, masked.tokens, rows))  # (C, N, K)
    targets = actions.gather(0, rows)
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    weights = selected.flatten() / selected.sum()
    with torch.no_grad():
        right = (logits.argmax(-1) == targets).flatten()
        accuracy = (right * weights).sum()
    return MaskedActionLoss((losses * weights).sum(), accuracy)
