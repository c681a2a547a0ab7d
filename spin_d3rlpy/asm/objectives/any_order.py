"""Any-order action modeling: hide any number of sub-actions, predict them from the rest."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.objectives.base import (
    ObjectiveLoss,
    PretrainingObjective,
    Validation,
    parts_of_batch,
)
from spin_d3rlpy.asm.objectives.masked import VALIDATION_RATIOS, MaskedActions, accuracies
from spin_d3rlpy.precision import Precision, autocast, backward


def mask_any_number(actions: torch.Tensor, mask_ids: torch.Tensor) -> MaskedActions:
    """Masks k random slots of each row of actions `(B, N)`, k uniform from 1 to N.

    `mask_ids` `(N,)` are the slots' mask tokens.
    """
    n_rows, n = actions.shape
    u = torch.rand(actions.shape, device=actions.device)
    last = torch.randint(n, (n_rows, 1), device=actions.device)  # k - 1
    selected = u <= u.sort(1).values.gather(1, last)
    return MaskedActions(torch.where(selected, mask_ids, actions), selected, (n + 1) / (2 * n))


class AnyOrderActionModeling(PretrainingObjective):
    r"""Masked action modeling in which every number of hidden slots counts the same.

    .. math::

        L = E_{k, M} \Big[ \frac{1}{k} \sum_{i \in M} -\log p(a_i | s, a_{\setminus M}) \Big],
        \quad k \sim U\{1..N\}, \; |M| = k

    N L is the mean, over orders of the slots, of the joint negative log-likelihood of actions drawn
    slot by slot in that order, an upper bound of the mixture's. k = N is stage 2's masked input.

    References:
        * Uria et al., A Deep and Tractable Density Estimator, 2014, equation 7.
    """

    def loss(
        self, observations: torch.Tensor, actions: torch.Tensor, masked: MaskedActions
    ) -> ObjectiveLoss:
        """The loss of a batch `(B, obs)`, `(B, N)` with input `masked`."""
        # Half of all slots carry loss: leaving the others out would save little.
        logits = self.asm.layout.split(self.asm(observations, masked.tokens))  # (B, N, K)
        losses = cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none")
        weights = masked.selected / (masked.selected.sum(1, keepdim=True) * len(actions))
        with torch.no_grad():
            accuracy = ((logits.argmax(-1) == actions) * weights).sum()
        return ObjectiveLoss((losses * weights.flatten()).sum(), accuracy)

    def add_gradients(
        self, observations: torch.Tensor, actions: torch.Tensor, precision: Precision = "float32"
    ) -> ObjectiveLoss:
        masked = mask_any_number(actions, self.asm.mask_ids)
        results = []
        for part in parts_of_batch(self.asm, len(actions), actions.device, precision):
            with autocast(actions.device, precision):
                result = self.loss(observations[part], actions[part], masked.rows(part))
                share = len(actions[part]) / len(actions)
                backward(share * result.loss)
            results.append(share * torch.stack([result.loss.detach(), result.accuracy]))
        loss, accuracy = torch.stack(results).sum(0)
        return ObjectiveLoss(loss, accuracy)

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Joint negative log-likelihood per slot (nats, the negative score) and accuracies."""
        masked = mask_any_number(actions, self.asm.mask_ids)
        total = sum(
            len(actions[part])
            * float(self.loss(observations[part], actions[part], masked.rows(part)).loss)
            for part in parts_of_batch(self.asm, len(actions), actions.device)
        )
        nll = total / len(actions)
        metrics = accuracies(self.asm, observations, actions, VALIDATION_RATIOS)
        return Validation(-nll, {"nll_per_slot": nll, **metrics})
