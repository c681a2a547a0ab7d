"""Interfaces of policies and of their features, policies of independent slots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from d3rlpy.models.torch.encoders import Encoder, compute_output_size
from d3rlpy.types import TorchObservation
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy import fast
from spin_d3rlpy.asm.decoding import (
    Conditionals,
    IndependentConditionals,
    OrderedConditionals,
    OrderName,
    decode,
)
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.fast import replace_dropout
from spin_d3rlpy.fast.precision import outputs_of
from spin_d3rlpy.images import encode_images
from spin_d3rlpy.nvec import SlotLayout, gumbel_noise


class SlotFeatures(nn.Module):
    """Maps observations `(B, obs)` to slot features `(B, N, D)`, or `(B, 1, D)` for all slots.

    Subclasses with features fixed in stage 2 (`frozen`: without gradients) need only `forward`.
    """

    pretrained: torch.Tensor
    n_tokens = 1  # rows of its matrix products for one observation

    def __init__(self, n_slots: int, width: int, frozen: bool = True) -> None:
        super().__init__()
        self.shape = (n_slots, width)
        self.frozen = frozen
        # Saved with the weights: a loaded policy must not be pre-trained again.
        self.register_buffer("pretrained", torch.tensor(False))

    @property
    def is_fixed(self) -> bool:
        """Whether no step of stage 2 changes features."""
        return self.frozen

    def freeze(self) -> None:
        """Freezes the parameters that are not trained (d3rlpy's exports unfreeze all)."""
        self.requires_grad_(not self.frozen)

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules that the actor's optimizer gets in addition to the heads."""
        return []

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the usable parts of an ASM; by default none."""


class Policy(nn.Module):
    """A distribution over actions `(N,)` given a state."""

    order: OrderName = "slots"  # in which slots are chosen, see `spin_d3rlpy.asm.decoding`

    def __init__(self, slot_layout: SlotLayout) -> None:
        super().__init__()
        self.slot_layout = slot_layout

    @property
    def n_tokens(self) -> int:
        """Rows of matrix products for one observation."""
        return 1

    def rows_per_update(self, batch_size: int) -> int:
        """Returns how many rows of a training batch of a config's size the policy takes."""
        return batch_size

    @abstractmethod
    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        """Joint log-probability `(B,)` of actions `(B, N)`: the sum over slots."""

    def decode(
        self,
        observations: torch.Tensor,
        noise: torch.Tensor | None = None,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        """Each slot's largest logit plus noise `(B, S)`, `(B, N)`: a sample if it is Gumbel's.

        Slots are chosen in the policy's `order`, by its `conditionals`, among what a rule allows in
        view of those before; a `NoAllowedChoiceError` says that this is nothing.
        """
        return decode(self.conditionals(observations), self.order, rule, noise)

    def greedy(self, observations: torch.Tensor, rule: Rule | None = None) -> torch.Tensor:
        """The greedy action `(B, N)`; the mode if slots are independent given the state."""
        return self._decode(observations, None, rule)

    def sample(self, observations: torch.Tensor, rule: Rule | None = None) -> torch.Tensor:
        """Sampled choices, `(B, N)`."""
        shape = (observations.shape[0], self.slot_layout.total)
        noise = gumbel_noise(torch.empty(shape, device=observations.device))
        return self._decode(observations, noise, rule)

    def _decode(
        self, observations: torch.Tensor, noise: torch.Tensor | None, rule: Rule | None
    ) -> torch.Tensor:
        # A policy of another package may know no rules.
        conditions = () if rule is None else (rule,)
        return self.decode(observations, noise, *conditions)

    def sample_several(
        self,
        observations: torch.Tensor,
        n: int,
        noise: torch.Tensor | None = None,
        temperature: float = 1.0,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        """Samples `n` actions per state, `(n, B, N)`, by a rule if one is given.

        Gumbel noise `(n, S)` is shared by all states, `(n, B, S)` is not; fresh if None.
        `temperature` is that of every slot's distribution; 0 makes all actions the greedy one.
        """
        observations = encode_images(self, observations)
        batch, device = observations.shape[0], observations.device
        if noise is None:
            added = gumbel_noise(torch.empty((n, batch, self.slot_layout.total), device=device))
        else:
            added = noise if noise.dim() == 3 else noise[:, None].expand(-1, batch, -1)
        # Cached features of slots in place of observations are (B, N, D).
        repeated = observations.expand(n, *observations.shape).flatten(0, 1)
        actions = self._decode(repeated, temperature * added.flatten(0, 1), rule)
        samples: torch.Tensor = actions.unflatten(0, (n, -1))
        return samples

    def draft_several(
        self,
        observations: torch.Tensor,
        n: int,
        noise: torch.Tensor | None = None,
        temperature: float = 1.0,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        """Returns actions for a search to start from, `(n, B, N)` or fewer: samples, or nearly.

        For the arguments see `sample_several`.
        """
        return self.sample_several(observations, n, noise, temperature, rule)

    def conditionals(self, observations: torch.Tensor) -> OrderedConditionals:
        """Returns logits of slots in view of others' choices, `asm.decoding.Conditionals`.

        A policy whose order is the slots' may return `OrderedConditionals`; no search acts by it.

        Raises:
            NotImplementedError: the policy cannot tell.
        """
        return self.conditionals_of_any(observations)

    def conditionals_of_any(self, observations: torch.Tensor) -> Conditionals:
        """Returns logits of any slots in view of any others' choices.

        Raises:
            NotImplementedError: the policy cannot tell.
        """
        raise NotImplementedError(
            f"A {type(self).__name__} does not know a choice's probability in view of all others. "
            "Expected search_sweeps=0, or another policy."
        )

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules for the actor's optimizer."""
        return [("policy", self)]

    @property
    def is_pretrained(self) -> bool:
        """Whether the policy's first stages are done (also after loading a saved policy)."""
        return False

    def freeze(self) -> None:
        """Freezes parameters that are not trained."""

    @property
    def fixed_features(self) -> SlotFeatures | None:
        """The part of the network that does not change, if any; it can be cached."""
        return None


class IndependentPolicy(Policy):
    """A policy whose `forward` gives every slot's logits at once, flat `(B, S)`."""

    order: OrderName = "confidence"  # counts where rules are

    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        return joint_log_prob(self.slot_layout, self(observations), actions)

    def conditionals_of_any(self, observations: torch.Tensor) -> IndependentConditionals:
        return IndependentConditionals(self.slot_layout, self.slot_layout.split(self(observations)))


class SlotOrderPolicy(Policy):
    """A policy whose slots are chosen in their order, each in view of those before it."""

    @abstractmethod
    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits `(B, S)` given the previous choices in actions `(B, N)`."""

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return joint_log_prob(self.slot_layout, self(observations, actions), actions)

    @abstractmethod
    def conditionals(self, observations: torch.Tensor) -> OrderedConditionals:
        """Returns logits of one slot after the other, each in view of those before it."""


def joint_log_prob(
    slot_layout: SlotLayout, logits: torch.Tensor, actions: torch.Tensor
) -> torch.Tensor:
    """Sum over slots of log-probabilities: flat logits `(B, S)`, actions `(B, N)` give `(B,)`."""
    split = slot_layout.split(logits)  # (B, N, K)
    if fast.switch.counts_launches(logits):
        return fast.losses.slot_log_prob(split, actions.long())
    negative = cross_entropy(split.flatten(0, 1), actions.long().flatten(), reduction="none")
    log_probs: torch.Tensor = -negative.unflatten(0, (-1, slot_layout.n_slots)).sum(-1)
    return log_probs


def keep_supported(
    slot_layout: SlotLayout,
    utilities: torch.Tensor,
    logits: torch.Tensor,
    action_flexibility: float,
) -> torch.Tensor:
    """Splits utilities `(..., B, S)` to `(..., B, N, K)`, `-inf` for unsupported choices.

    `action_flexibility` is the smallest supported probability under the policy's `logits` `(B, S)`,
    relative to the slot's most likely choice.
    """
    split = slot_layout.split(logits)
    share = (split - split.amax(-1, keepdim=True)).exp()
    return slot_layout.split(utilities).masked_fill(share < action_flexibility, -torch.inf)


# Of the noise by which `predict` draws candidates: the same in every process.
_CANDIDATE_SEED = 0


def candidate_noise(slot_layout: SlotLayout, n: int, device: str) -> torch.Tensor:
    """Gumbel noise `(n, S)` that is always the same."""
    generator = torch.Generator().manual_seed(_CANDIDATE_SEED)
    # Drawn on the CPU, so that it is the same on every device.
    return gumbel_noise(torch.empty(n, slot_layout.total, device="cpu"), generator).to(device)


class FactoredPolicy(IndependentPolicy):
    """Any d3rlpy encoder followed by one linear head per slot."""

    def __init__(
        self, observation_shape: Sequence[int], encoder: Encoder, nvec: Sequence[int]
    ) -> None:
        super().__init__(SlotLayout(nvec))
        self.encoder = replace_dropout(encoder)
        # All heads side by side: row block i of the weight is slot i's head.
        self.heads = nn.Linear(compute_output_size([observation_shape], encoder), sum(nvec))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        return outputs_of([(self.encoder, self.heads)], observations).squeeze(0)
