"""Policies whose choices are scored by features of slots and choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import relu

from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import ActionStructureModel, SlotTransformer, TransformerConfig
from spin_d3rlpy.asm.scorers import EntityBySlot, create_scorer, score_all, score_in_order
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.features import require_same_sizes


def all_masked(slot_layout: SlotLayout, observations: torch.Tensor) -> torch.Tensor:
    """Returns tokens `(B, N)` of observations `(B, obs)` whose slots have all to be chosen."""
    shape = observations.shape[0], slot_layout.n_slots
    mask = slot_layout.max_choices  # all slots have as many choices
    return torch.full(shape, mask, device=observations.device)


class _WithEntities(Policy):
    """A policy whose network takes features of slots and choices, in batches that are cut."""

    config: EntityConfig

    def rows_per_update(self, batch_size: int) -> int:
        return self.config.rows_per_update(batch_size, self.slot_layout.n_slots)


class EntityPolicy(_WithEntities, IndependentPolicy):
    """The structure model's network with all slots masked.

    Args:
        observation_size: length of an observation.
        nvec: number of choices of each slot.
        config: sizes, and where the features are.
        from_asm: start from a pre-trained model and train only the last layers (SPIN); else
            all is trained.
    """

    pretrained: torch.Tensor  # ()

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: EntityConfig, from_asm: bool
    ) -> None:
        super().__init__(SlotLayout(nvec))
        self.config = config
        self.from_asm = from_asm
        self.scorer = create_scorer(observation_size, nvec, config)
        self.register_buffer("pretrained", torch.tensor(False))
        self.freeze()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        masked = all_masked(self.slot_layout, observations)
        return score_all(self.scorer, observations, masked).flatten(1)

    @property
    def is_pretrained(self) -> bool:
        return bool(self.pretrained)

    def freeze(self) -> None:
        if self.from_asm:
            self.scorer.requires_grad_(False)
            for _, part in self.trainable_modules():
                part.requires_grad_(True)

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Takes over the model's weights; NvecMismatchError if it is of another kind or size."""
        require_same_nvec(self.slot_layout.nvec, asm.nvec, "The policy", "the ASM")
        require_same_sizes(self.config, asm)
        assert asm.scorer is not None
        self.scorer.load_state_dict(asm.scorer.state_dict())
        self.pretrained.fill_(True)

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        if not self.from_asm:
            return super().trainable_modules()
        return [("hidden", self.scorer.hidden), ("heads", self.scorer.out)]


class EntityOrderPolicy(_WithEntities, SlotOrderPolicy):
    """The structure model's network, trained to choose slots in their order (AR- with features).

    A slot's choices are scored in view of those of the slots before it; later slots are masked.
    Arguments are those of `EntityPolicy`.
    """

    def __init__(self, observation_size: int, nvec: Sequence[int], config: EntityConfig) -> None:
        super().__init__(SlotLayout(nvec))
        self.config = config
        self.scorer = create_scorer(observation_size, nvec, config)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return score_in_order(self.scorer, observations, actions.long()).flatten(1)

    def conditionals(self, observations: torch.Tensor) -> EntityBySlot:
        return EntityBySlot(self.scorer, self.slot_layout, observations)


class SlotAttention(nn.Module):
    """SAINT's Transformer, whose tokens are slots and choices, next to those of the state.

    Args:
        width: of what the network of features knows of a slot, a choice and the state (W).
        config: sizes of the Transformer.
    """

    def __init__(self, width: int, config: TransformerConfig) -> None:
        super().__init__()
        self.token = nn.Linear(width, config.width)
        self.trunk = SlotTransformer(width, config)
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, width, bias=False)

    def forward(
        self, slots: torch.Tensor, choices: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds to slots `(B, N, W)` and choices `(B, K, W)` what they learn from each other.

        The state is `(B, W)`.
        """
        n_slots, things = slots.shape[1], torch.cat([slots, choices], dim=1)
        features = self.trunk(relu(state), self.token(relu(things)))
        things = things + self.out(self.norm(features))
        return things[:, :n_slots], things[:, n_slots:]


class AttendingPolicy(_WithEntities, IndependentPolicy):
    """SAINT with features: slots and choices attend to each other, then pairs are scored.

    The network is that of `EntityPolicy` with attention after its first layer. Slots are
    independent given the state. There are no position codes: permuting slots or choices permutes
    the logits, and slots without features would all choose alike.

    Args:
        observation_size: length of an observation.
        nvec: number of choices of each slot.
        config: sizes of the network, and where the features are.
        transformer: sizes of attention; heads have those of `config`.

    References:
        * Landers et al., SAINT: Attention-Based Policies for Discrete Combinatorial Action Spaces,
          2025, where tokens are learned queries of slots.
    """

    def __init__(
        self,
        observation_size: int,
        nvec: Sequence[int],
        config: EntityConfig,
        transformer: TransformerConfig,
    ) -> None:
        super().__init__(SlotLayout(nvec))
        self.config = config
        self.scorer = create_scorer(observation_size, nvec, config)
        by_pairs = config.layout.has_choice_features
        width = config.width if by_pairs else config.slot_width
        self.attention = SlotAttention(width, transformer)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        masked = all_masked(self.slot_layout, observations)
        return score_all(self.scorer, observations, masked, self.attention).flatten(1)
