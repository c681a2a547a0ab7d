"""A policy of independent slots whose choices are scored by features of slots and choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.scorers import create_scorer, score_all
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy
from spin_d3rlpy.policies.features import require_same_sizes


class EntityPolicy(IndependentPolicy):
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
        shape = observations.shape[0], self.layout.n_slots
        mask = self.layout.max_choices  # all slots have as many choices
        masked = torch.full(shape, mask, device=observations.device)
        return score_all(self.scorer, observations, masked).flatten(1)

    def rows_per_update(self, batch_size: int) -> int:
        return self.config.rows_per_update(batch_size, self.layout.n_slots)

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
        require_same_nvec(self.layout.nvec, asm.nvec, "The policy", "the ASM")
        require_same_sizes(self.config, asm)
        assert asm.scorer is not None
        self.scorer.load_state_dict(asm.scorer.state_dict())
        self.pretrained.fill_(True)

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        if not self.from_asm:
            return super().trainable_modules()
        return [("hidden", self.scorer.hidden), ("heads", self.scorer.out)]
