"""Masked action modeling (MAM): hide some sub-actions, predict them from the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives.base import (
    ObjectiveLoss,
    PretrainingObjective,
    Validation,
    parts_of_batch,
)
from spin_d3rlpy.precision import Precision, autocast, backward


class MaskedActions(NamedTuple):
    """Input and targets of masked modeling.

    Args:
        tokens: `(B, N)` input tokens.
        selected: `(B, N)` True where the slot carries loss.
        mask_prob: mean probability of selection over rows.
    """

    tokens: torch.Tensor
    selected: torch.Tensor
    mask_prob: float

    @property
    def capacity(self) -> int:
        """Upper bound of the rows in which a slot is selected."""
        return row_capacity(len(self.tokens), self.mask_prob)

    def rows(self, part: slice) -> MaskedActions:
        """Returns a part of the batch."""
        return self._replace(tokens=self.tokens[part], selected=self.selected[part])


def mask_actions(
    actions: torch.Tensor,
    mask_ids: torch.Tensor,
    mask_prob: float = 0.15,
    mask_token_share: float = 0.8,
    random_share: float = 0.1,
    mask_prob_max: float | None = None,
) -> MaskedActions:
    """Selects slots at random and corrupts their tokens (SPIN, section 4.1).

    Each slot of each row is selected with probability `mask_prob`, at least one per batch. A
    selected slot's token becomes the mask token, a uniformly random choice, or stays.

    Args:
        actions: `(B, N)` integer choices.
        mask_ids: each slot's mask token, `(N,)`.
        mask_prob: probability of selection.
        mask_token_share: share of selected slots that get the mask token.
        random_share: share of selected slots that get a random choice.
        mask_prob_max: if given, each row's probability is uniform between `mask_prob` and this; at
            1 the fully masked input of stage 2 occurs.
    """
    n_rows = len(actions)
    mean_prob = mask_prob
    p: float | torch.Tensor = mask_prob
    if mask_prob_max is not None:
        mean_prob = (mask_prob + mask_prob_max) / 2
        spread = mask_prob_max - mask_prob
        p = mask_prob + spread * torch.rand(n_rows, 1, device=actions.device)  # (B, 1)
    # One draw decides both: below p is selected, and where below p says what becomes of it.
    u = torch.rand(actions.shape, device=actions.device)
    # The smallest draw counts as selected, so that no batch is without loss. No host sync.
    selected = (u < p) | (u == u.min())
    masked = u < p * mask_token_share
    randomized = u < p * (mask_token_share + random_share)  # those that are not masked
    choice = (torch.rand_like(u) * mask_ids).long()
    tokens = torch.where(masked, mask_ids, torch.where(randomized, choice, actions))
    return MaskedActions(tokens, selected, mean_prob)


def row_capacity(n_rows: int, mask_prob: float) -> int:
    """Bound on the rows in which a slot is selected: mean plus six standard deviations.

    A fixed number, because counting would wait for the device. A slot exceeds it, and loses a
    selected entry, with probability below 1e-7 per step.
    """
    mean = n_rows * mask_prob
    return min(n_rows, math.ceil(mean + 6 * math.sqrt(mean * (1 - mask_prob)) + 6))


def masked_action_loss(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
    n_selected: torch.Tensor | None = None,
) -> ObjectiveLoss:
    """Mean cross-entropy over the selected slots (the paper's text has the sum).

    Data are `(B, obs)` and `(B, N)`, `masked` is from `mask_actions`; `n_selected` is the divisor,
    the number of selected slots if None.
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
    return ObjectiveLoss((losses * weights).sum(), accuracy)


class MaskedActionModeling(PretrainingObjective):
    """MAM, SPIN's objective (section 4.1); trains trunk, embeddings and heads of `asm`.

    The other arguments are those of `mask_actions`.
    """

    def __init__(
        self,
        asm: ActionStructureModel,
        mask_prob: float = 0.15,
        mask_token_share: float = 0.8,
        random_share: float = 0.1,
        mask_prob_max: float | None = None,
    ) -> None:
        super().__init__(asm)
        self.mask_prob = mask_prob
        self.mask_token_share = mask_token_share
        self.random_share = random_share
        self.mask_prob_max = mask_prob_max

    def add_gradients(
        self, observations: torch.Tensor, actions: torch.Tensor, precision: Precision = "float32"
    ) -> ObjectiveLoss:
        masked = mask_actions(
            actions,
            self.asm.mask_ids,
            self.mask_prob,
            self.mask_token_share,
            self.random_share,
            self.mask_prob_max,
        )
        return add_masked_gradients(self.asm, observations, actions, masked, precision)

    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Accuracy at several mask ratios; the score is the per-slot one at the training ratio."""
        ratios = {self.mask_prob, *VALIDATION_RATIOS}
        metrics = accuracies(self.asm, observations, actions, ratios)
        return Validation(metrics[f"slot_accuracy_at_{self.mask_prob:g}"], metrics)


# The published ratio, half of the slots, and the input of stage 2.
VALIDATION_RATIOS = (0.15, 0.5, 1.0)


class MaskedAccuracy(NamedTuple):
    """Accuracy on hidden sub-actions.

    Args:
        slot: share of hidden sub-actions predicted right.
        exact: share of rows with hidden sub-actions where all of them are right.
    """

    slot: float
    exact: float


@torch.no_grad()
def masked_accuracy(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    mask_prob: float,
) -> MaskedAccuracy:
    """Hides each slot with probability `mask_prob` (0 exclusive to 1) and predicts it.

    Dropout is as the mode of `asm`; data are `(B, obs)` and `(B, N)`.
    """
    hidden = mask_actions(actions, asm.mask_ids, mask_prob, 1.0, 0.0)
    right = []
    for part in parts_of_batch(asm, len(actions), observations.device):
        logits = asm(observations[part], hidden.tokens[part])
        right.append(asm.layout.argmax(logits) == actions[part])
    hit = torch.cat(right) & hidden.selected
    rows = hidden.selected.any(1)
    exact = (hit == hidden.selected).all(1) & rows
    return MaskedAccuracy(float(hit.sum() / hidden.selected.sum()), float(exact.sum() / rows.sum()))


def accuracies(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    ratios: Iterable[float],
) -> dict[str, float]:
    """Returns `masked_accuracy` at several mask ratios, by name."""
    metrics = {}
    for ratio in sorted(ratios):
        result = masked_accuracy(asm, observations, actions, ratio)
        metrics[f"slot_accuracy_at_{ratio:g}"] = result.slot
        metrics[f"exact_accuracy_at_{ratio:g}"] = result.exact
    return metrics


def add_masked_gradients(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
    precision: Precision = "float32",
) -> ObjectiveLoss:
    """Computes `masked_action_loss` and adds its gradients to the parameters' `grad`.

    On a CPU, large batches are computed in parts, so that memory is reused. `precision`: see
    `spin_d3rlpy.precision.autocast`.
    """
    n_selected = masked.selected.sum()
    results = []
    for part in parts_of_batch(asm, len(observations), observations.device, precision):
        with autocast(observations.device, precision):
            result = masked_action_loss(
                asm, observations[part], actions[part], masked.rows(part), n_selected
            )
            backward(result.loss)
        results.append(torch.stack([result.loss.detach(), result.accuracy]))
    loss, accuracy = torch.stack(results).sum(0)
    return ObjectiveLoss(loss, accuracy)
