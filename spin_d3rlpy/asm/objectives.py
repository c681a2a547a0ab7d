"""Masked action modelling (MAM): hide some sub-actions, predict them from the rest."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.precision import Precision, autocast

# More tokens than this at once were slower on CPUs, fewer too.
TOKENS_AT_ONCE = 8192


class MaskedActions(NamedTuple):
    """What the model sees and what it must predict.

    Args:
        tokens: `(B, N)` input tokens.
        selected: `(B, N)` True where the slot carries loss.
        mask_prob: probability with which slots were selected.
    """

    tokens: torch.Tensor
    selected: torch.Tensor
    mask_prob: float

    @property
    def capacity(self) -> int:
        """No slot is selected in more rows than this."""
        return row_capacity(len(self.tokens), self.mask_prob)

    def rows(self, start: int, stop: int) -> MaskedActions:
        """Rows `start` to `stop` of the batch."""
        return self._replace(tokens=self.tokens[start:stop], selected=self.selected[start:stop])


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
    return MaskedActions(tokens, selected, mask_prob)


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
    n_selected: torch.Tensor | None = None,
) -> MaskedActionLoss:
    """Mean cross-entropy over the selected slots (the paper's text has the sum).

    Args:
        asm: the model.
        observations: `(B, obs)`.
        actions: `(B, N)` true choices.
        masked: what `mask_actions` made of them.
        n_selected: what the sum is divided by; the number of selected slots if None.
    """
    # Only what carries loss goes through the last block's second half and the heads.
    selected, rows = masked.selected.float().topk(masked.capacity, dim=0, sorted=False)  # (C, N)
    logits = asm.layout.split(asm(observations, masked.tokens, rows))  # (C, N, K)
    targets = actions.gather(0, rows)
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    weights = selected.flatten() / (selected.sum() if n_selected is None else n_selected)
    with torch.no_grad():
        right = (logits.argmax(-1) == targets).flatten()
        accuracy = (right * weights).sum()
    return MaskedActionLoss((losses * weights).sum(), accuracy)


def add_gradients(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
    precision: Precision = "float32",
) -> MaskedActionLoss:
    """Computes `masked_action_loss` and adds its gradients to the parameters' `grad`.

    On a CPU, a batch of many tokens goes through in parts: the sum of their gradients is the
    batch's, and arrays that are not huge stay in the cache and in memory that can be used again.

    Args:
        asm: the model.
        observations: `(B, obs)`.
        actions: `(B, N)` true choices.
        masked: what `mask_actions` made of them.
        precision: number format, see `spin_d3rlpy.precision.autocast`.
    """
    n_rows = len(observations)
    tokens_a_row = asm.config.n_state_tokens + asm.layout.n_slots
    on_cpu = observations.device.type == "cpu"
    size = max(1, TOKENS_AT_ONCE // tokens_a_row) if on_cpu else n_rows
    size = math.ceil(n_rows / math.ceil(n_rows / size))  # equal parts
    n_selected = masked.selected.sum()
    results = []
    for start in range(0, n_rows, size):
        part = slice(start, start + size)
        with autocast(observations.device, precision):
            result = masked_action_loss(
                asm, observations[part], actions[part], masked.rows(start, start + size), n_selected
            )
        result.loss.backward()
        results.append(torch.stack([result.loss.detach(), result.accuracy]))
    loss, accuracy = torch.stack(results).sum(0)
    return MaskedActionLoss(loss, accuracy)
