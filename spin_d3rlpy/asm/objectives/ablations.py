"""SPIN's ablations: variational (VAM) and contrastive action modeling (CAM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives.base import ObjectiveLoss, PretrainingObjective, Validation
from spin_d3rlpy.fast.precision import in_float32


class VariationalActionModeling(PretrainingObjective):
    r"""A variational autoencoder of actions given states (SPIN's ablation VAM).

    .. math::

        h = \frac{1}{N} \sum_i f_i(s, a), \quad z \sim q = \mathcal{N}(\mu(h), \sigma^2(h)), \quad
        L = -\frac{1}{N} \sum_i \log p(a_i | s, z) + \beta \, KL(q \,\|\, \mathcal{N}(0, I))

    f are the trunk's slot features of the unmasked action, p is an MLP on z and the encoded state.
    Sizes and beta (`kl_weight`) are not published; the defaults are ours. The ASM's prediction
    heads are not trained.

    References:
        * Kingma and Welling, Auto-Encoding Variational Bayes, 2014, equation 10.
    """

    def __init__(
        self, asm: ActionStructureModel, latent_size: int = 64, kl_weight: float = 0.1
    ) -> None:
        super().__init__(asm)
        d, m = asm.config.width, asm.transformer.n_state_tokens
        self.latent_size, self.kl_weight = latent_size, kl_weight
        self.posterior = nn.Linear(d, 2 * latent_size)
        self.decoder = nn.Sequential(nn.Linear(latent_size + m * d, 2 * d), nn.GELU())
        self.decoder_out = nn.Linear(2 * d, asm.slot_layout.total)

    def encode(self, observations: torch.Tensor, actions: torch.Tensor) -> Sequence[torch.Tensor]:
        """Returns mean and log-variance, `(B, Z)` each, of the latents of `(B, obs)`, `(B, N)`."""
        asm = self.asm
        features = asm.transformer(observations, asm.embedding.weight, actions + asm.row_offsets)
        return in_float32(self.posterior, features.mean(1)).chunk(2, dim=-1)

    def decode(self, observations: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`, of states `(B, obs)` and latents `(B, Z)`."""
        trunk = self.asm.transformer
        state = trunk.state_encoder(trunk.images(observations))
        hidden = self.decoder(torch.cat([latent.to(state.dtype), state], dim=-1))
        logits: torch.Tensor = in_float32(self.decoder_out, hidden)
        return logits

    def loss(
        self, observations: torch.Tensor, actions: torch.Tensor, noise: torch.Tensor
    ) -> ObjectiveLoss:
        """The loss with given standard normal noise `(B, Z)` (reparameterization)."""
        mean, log_variance = self.encode(observations, actions)
        logits = self.decode(observations, mean + (0.5 * log_variance).exp() * noise)
        split = self.asm.slot_layout.split(logits)  # (B, N, K)
        reconstruction = cross_entropy(split.flatten(0, 1), actions.flatten())
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean()
        accuracy = (split.detach().argmax(-1) == actions).float().mean()
        return ObjectiveLoss(reconstruction + self.kl_weight * kl, accuracy)

    def loss_of_parts(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> Callable[[slice], ObjectiveLoss]:
        noise = torch.randn(len(actions), self.latent_size, device=actions.device)
        return lambda part: self.loss(observations[part], actions[part], noise[part])

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Reconstruction from the posterior's mean; the score is the negative loss."""
        noise = torch.zeros(len(actions), self.latent_size, device=actions.device)
        loss, accuracy = self.mean_of_parts(
            len(noise), lambda part: self.loss(observations[part], actions[part], noise[part])
        )
        return -loss, {"loss": loss, "slot_accuracy": accuracy}


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
        ValueError: there is only one slot.
    """

    has_parts = False  # every row is compared with all others

    def __init__(
        self, asm: ActionStructureModel, projection_size: int = 128, temperature: float = 0.1
    ) -> None:
        super().__init__(asm)
        if asm.slot_layout.n_slots < 2:
            raise ValueError(
                "Contrastive action modeling compares a slot with the others; got a single "
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
        context = (features.sum(1, keepdim=True) - features) / (asm.slot_layout.n_slots - 1)
        # Slots first: (N, B, P).
        slots = normalize(self.project_slot(features).float(), dim=-1).transpose(0, 1)
        contexts = normalize(self.project_context(context).float(), dim=-1).transpose(0, 1)
        similarity = slots @ contexts.transpose(1, 2) / self.temperature  # (N, B, B)
        n, b = similarity.shape[:2]
        own = torch.arange(b, device=similarity.device).repeat(n)
        loss = cross_entropy(similarity.flatten(0, 1), own)
        accuracy = (similarity.detach().flatten(0, 1).argmax(-1) == own).float().mean()
        return ObjectiveLoss(loss, accuracy)

    def loss_of_parts(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> Callable[[slice], ObjectiveLoss]:
        return lambda part: self.loss(observations[part], actions[part])

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Finds contexts among 256 rows at a time; the score is the negative loss."""
        n = VALIDATION_ROWS
        results = [
            torch.stack(self.loss(observations[row : row + n], actions[row : row + n]))
            for row in range(0, max(1, len(actions) - n + 1), n)
        ]
        loss, accuracy = torch.stack(results).mean(0).tolist()
        return -loss, {"loss": loss, "context_accuracy": accuracy}
