"""Contrastive action modeling (CAM): identify the context of a sub-action."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives.base import ObjectiveLoss, PretrainingObjective, Validation
from spin_d3rlpy.precision import Precision, autocast, backward

# Rows that are told apart from each other in validation.
VALIDATION_ROWS = 256


class ContrastiveActionModeling(PretrainingObjective):
    r"""InfoNCE between each slot and the mean of the others (SPIN's ablation CAM).

    .. math::

        c_i = \frac{1}{N - 1} \sum_{j \ne i} f_j(s, a), \quad
        L = -\frac{1}{N B} \sum_{i, b} \log \frac{\exp(u_{ib} \cdot v_{ib} / \tau)}
            {\sum_{b'} \exp(u_{ib} \cdot v_{ib'} / \tau)}

    f are the trunk's slot features of the unmasked action; u and v are normalized projections of
    f_i and c_i by one head each. Sizes and tau (`temperature`) are not published; the defaults are
    ours. The ASM's prediction heads are not trained.

    References:
        * van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018,
          equation 4.

    Raises:
        ValueError: there is only one sub-action.
    """

    def __init__(
        self, asm: ActionStructureModel, projection_size: int = 128, temperature: float = 0.1
    ) -> None:
        super().__init__(asm)
        if asm.layout.n_slots < 2:
            raise ValueError(
                "Contrastive action modeling compares a sub-action with the others; got a single "
                "one. Use another pre-training objective."
            )
        self.temperature = temperature
        d = asm.transformer.config.width
        self.project_slot, self.project_context = (
            nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, projection_size))
            for _ in range(2)
        )

    def loss(self, observations: torch.Tensor, actions: torch.Tensor) -> ObjectiveLoss:
        """The loss of a batch `(B, obs)`, `(B, N)`; other rows are the negatives."""
        asm = self.asm
        features = asm.transformer(observations, asm.embedding.weight, actions + asm.row_offsets)
        context = (features.sum(1, keepdim=True) - features) / (asm.layout.n_slots - 1)
        # Slots first: (N, B, P).
        slots = normalize(self.project_slot(features).float(), dim=-1).transpose(0, 1)
        contexts = normalize(self.project_context(context).float(), dim=-1).transpose(0, 1)
        similarity = slots @ contexts.transpose(1, 2) / self.temperature  # (N, B, B)
        n, b = similarity.shape[:2]
        own = torch.arange(b, device=similarity.device).repeat(n)
        loss = cross_entropy(similarity.flatten(0, 1), own)
        accuracy = (similarity.detach().flatten(0, 1).argmax(-1) == own).float().mean()
        return ObjectiveLoss(loss, accuracy)

    def add_gradients(
        self, observations: torch.Tensor, actions: torch.Tensor, precision: Precision = "float32"
    ) -> ObjectiveLoss:
        # Not in parts: every row is compared with all others.
        with autocast(observations.device, precision):
            result = self.loss(observations, actions)
            backward(result.loss)
        return ObjectiveLoss(result.loss.detach(), result.accuracy)

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Finds contexts among 256 rows at a time; the score is the negative loss."""
        n = VALIDATION_ROWS
        results = [
            torch.stack(self.loss(observations[row : row + n], actions[row : row + n]))
            for row in range(0, max(1, len(actions) - n + 1), n)
        ]
        loss, accuracy = torch.stack(results).mean(0).tolist()
        return Validation(-loss, {"loss": loss, "context_accuracy": accuracy})
