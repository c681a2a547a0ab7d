"""Masked action modeling (MAM): hide some slots, or any number, and predict them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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


class MaskedActions(NamedTuple):
    """Input and targets of masked modeling."""

    tokens: torch.Tensor  # (B, N)
    selected: torch.Tensor  # (B, N) True where the slot carries loss
    mask_prob: float  # mean probability of selection over rows

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
    """Selects slots of actions `(B, N)` and corrupts their tokens (SPIN, section 4.1).

    Each slot of each row is selected with probability `mask_prob`, at least one per batch; up to
    `mask_prob_max` see `PretrainingConfig`. Of the selected slots, `mask_token_share` get the mask
    token of `mask_ids` `(N,)`, `random_share` a uniformly random choice, and the rest stay.
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
    """Mean cross-entropy over the selected slots of `(B, obs)`, `(B, N)` (the paper has the sum).

    `n_selected` is the divisor, the number of selected slots if None.
    """
    # Only what carries loss goes through the last block's second half and the heads.
    selected, rows = masked.selected.float().topk(masked.capacity, dim=0, sorted=False)  # (C, N)
    logits = asm.slot_layout.split(asm(observations, masked.tokens, rows))  # (C, N, K)
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

    is_mean = False

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
        self.masking = (mask_prob, mask_token_share, random_share, mask_prob_max)

    def loss_of_parts(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> Callable[[slice], ObjectiveLoss]:
        masked = mask_actions(actions, self.asm.mask_ids, *self.masking)
        n_selected = masked.selected.sum()

        def loss_of(part: slice) -> ObjectiveLoss:
            rows = masked.rows(part)
            return masked_action_loss(self.asm, observations[part], actions[part], rows, n_selected)

        return loss_of

    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Accuracy at several mask ratios; the score is the per-slot one at the training ratio."""
        ratios = {self.mask_prob, *VALIDATION_RATIOS}
        metrics = masked_accuracies(self.asm, observations, actions, ratios)
        return metrics[f"slot_accuracy_at_{self.mask_prob:g}"], metrics


# The published ratio, half of the slots, and the input of stage 2.
VALIDATION_RATIOS = (0.15, 0.5, 1.0)


@torch.no_grad()
def masked_accuracies(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    ratios: Iterable[float],
) -> dict[str, float]:
    """Hides each slot of `(B, N)` with probabilities from 0 (exclusive) to 1 and predicts it.

    Returns for each the share of hidden slots that are right, and of rows where all of them are.
    """
    metrics = {}
    for ratio in sorted(ratios):
        hidden = mask_actions(actions, asm.mask_ids, ratio, 1.0, 0.0)
        right = []
        for part in parts_of_batch(asm, len(actions), observations.device):
            logits = asm(observations[part], hidden.tokens[part])
            right.append(asm.slot_layout.argmax(logits) == actions[part])
        hit = torch.cat(right) & hidden.selected
        rows = hidden.selected.any(1)
        exact = (hit == hidden.selected).all(1) & rows
        metrics[f"slot_accuracy_at_{ratio:g}"] = float(hit.sum() / hidden.selected.sum())
        metrics[f"exact_accuracy_at_{ratio:g}"] = float(exact.sum() / rows.sum())
    return metrics


def mask_any_number(
    actions: torch.Tensor, mask_ids: torch.Tensor, full_share: float = 0.0
) -> MaskedActions:
    """Masks k random slots of each row of actions `(B, N)`, k uniform from 1 to N.

    A share `full_share` of the rows is fully masked instead.
    """
    n_rows, n = actions.shape
    u = torch.rand(actions.shape, device=actions.device)
    last = torch.randint(n, (n_rows, 1), device=actions.device)  # k - 1
    if full_share:
        is_full = torch.rand(n_rows, 1, device=actions.device) < full_share
        last = torch.where(is_full, n - 1, last)
    selected = u <= u.sort(1).values.gather(1, last)
    mean = full_share + (1.0 - full_share) * (n + 1) / (2 * n)
    return MaskedActions(torch.where(selected, mask_ids, actions), selected, mean)


class AnyOrderActionModeling(PretrainingObjective):
    r"""Masked action modeling in which every number of hidden slots counts the same.

    .. math::

        L = E_{k, M} \Big[ \frac{1}{k} \sum_{i \in M} -\log p(a_i | s, a_{\setminus M}) \Big],
        \quad k \sim U\{1..N\}, \; |M| = k

    N L is the mean, over orders of the slots, of the joint negative log-likelihood of actions drawn
    slot by slot in that order, an upper bound of the mixture's. k = N is stage 2's masked input,
    which only one row in N sees; `full_mask_share` of the training's rows get it in addition.

    References:
        * Uria et al., A Deep and Tractable Density Estimator, 2014, equation 7.
    """

    def __init__(self, asm: ActionStructureModel, full_mask_share: float = 0.0) -> None:
        super().__init__(asm)
        self.full_mask_share = full_mask_share

    def loss(
        self, observations: torch.Tensor, actions: torch.Tensor, masked: MaskedActions
    ) -> ObjectiveLoss:
        """The loss of a batch `(B, obs)`, `(B, N)` with input `masked`."""
        return ObjectiveLoss(*(x.mean() for x in self._of_rows(observations, actions, masked)))

    def _of_rows(
        self, observations: torch.Tensor, actions: torch.Tensor, masked: MaskedActions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each row's loss and accuracy, `(B,)`."""
        # Half of all slots carry loss: leaving the others out would save little.
        logits = self.asm.slot_layout.split(self.asm(observations, masked.tokens))  # (B, N, K)
        losses = cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none")
        weights = masked.selected / masked.selected.sum(1, keepdim=True)
        with torch.no_grad():
            accuracy = ((logits.argmax(-1) == actions) * weights).sum(1)
        return (losses.unflatten(0, weights.shape) * weights).sum(1), accuracy

    @torch.no_grad()
    def row_losses(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the loss of each row of `(B, obs)`, `(B, N)`, with random masks, `(B,)`."""
        masked = mask_any_number(actions, self.asm.mask_ids, self.full_mask_share)
        parts = parts_of_batch(self.asm, len(actions), actions.device)
        losses = [
            self._of_rows(observations[part], actions[part], masked.rows(part))[0] for part in parts
        ]
        return torch.cat(losses)

    def loss_of_parts(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> Callable[[slice], ObjectiveLoss]:
        masked = mask_any_number(actions, self.asm.mask_ids, self.full_mask_share)
        return lambda part: self.loss(observations[part], actions[part], masked.rows(part))

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Joint negative log-likelihood per slot (nats, the negative score) and accuracies."""
        nll, _ = self.mean_of_parts(len(actions), self.loss_of_parts(observations, actions))
        metrics = masked_accuracies(self.asm, observations, actions, VALIDATION_RATIOS)
        return -nll, {"nll_per_slot": nll, **metrics}
