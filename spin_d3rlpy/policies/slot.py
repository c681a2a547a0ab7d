"""Policies made of slot features and one small head per slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from spin_d3rlpy.asm.model import ActionStructureModel, StructureConfig, create_heads
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy
from spin_d3rlpy.policies.features import SlotFeatures

HeadInit = Literal["random", "asm"]


class SlotPolicy(IndependentPolicy):
    """Slot features and one small head per slot, at first `"random"` (published) or the `"asm"`'s.

    Raises:
        ValueError: an unknown initialization.
    """

    def __init__(
        self,
        nvec: Sequence[int],
        features: SlotFeatures,
        config: StructureConfig,
        head_init: HeadInit = "random",
    ) -> None:
        super().__init__(SlotLayout(nvec))
        if head_init not in get_args(HeadInit):
            raise ValueError(f"Expected head_init 'random' or 'asm', got {head_init!r}.")
        self.head_init: HeadInit = head_init
        self.features = features
        self.heads = create_heads(nvec, config)

    @property
    def n_tokens(self) -> int:
        return self.features.n_tokens

    @property
    def is_pretrained(self) -> bool:
        return bool(self.features.pretrained)

    def freeze(self, grad_step: int) -> None:
        self.features.freeze(grad_step)

    def frozen_features(self, grad_step: int) -> SlotFeatures | None:
        changes = not self.features.frozen or self.features.trains_queries(grad_step)
        return None if changes else self.features

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the ASM's trunk (and queries and heads as initialized from it).

        Raises:
            NvecMismatchError: the ASM has another action space or size.
        """
        require_same_nvec(self.layout.nvec, asm.nvec, "The policy", "the ASM")
        self.features.load_asm(asm)
        if self.head_init == "asm":
            self.heads.load_state_dict(asm.heads.state_dict())

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        if not self.features.frozen:
            return super().trainable_modules()
        return [*self.features.trainable_modules(), ("heads", self.heads)]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`, of observations `(B, obs)` or features `(B, N, D)`."""
        features = self.features(inputs) if inputs.dim() == 2 else inputs
        if not torch.is_autocast_enabled(inputs.device.type):  # cached features are bfloat16
            features = features.to(next(self.heads.parameters()).dtype)
        logits: torch.Tensor = self.heads(features)
        return logits
