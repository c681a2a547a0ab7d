"""Features of states, the input of small policy heads."""

from __future__ import annotations

import torch
from torch import nn

from spin_d3rlpy.asm.model import ActionStructureModel


class SlotFeatures(nn.Module):
    """Maps observations `(B, obs)` to slot features `(B, N, D)`, or `(B, 1, D)` for all slots.

    Subclasses with features fixed in stage 2 need only `forward`.

    Args:
        n_slots: number of sub-actions (N), or 1 if all share their features.
        width: length of a slot's features (D).
        frozen: whether its parameters get no gradients.
    """

    pretrained: torch.Tensor
    n_tokens = 1  # rows of its matrix products for one observation

    def __init__(self, n_slots: int, width: int, frozen: bool = True) -> None:
        super().__init__()
        self.shape = (n_slots, width)
        self.frozen = frozen
        # Saved with the weights: a loaded policy must not be pre-trained again.
        self.register_buffer("pretrained", torch.tensor(False))

    def freeze(self, grad_step: int) -> None:
        """Freezes the parameters that this step does not train (d3rlpy's exports unfreeze all)."""
        self.requires_grad_(not self.frozen)

    def trains_queries(self, grad_step: int) -> bool:
        """Whether features still change in this gradient step (counted from 0)."""
        return not self.frozen

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules that the actor's optimizer gets in addition to the heads."""
        return []

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the usable parts of an ASM; by default none."""
