"""Tasks that pre-train the ASM: masked (MAM, SPIN's own), variational (VAM), contrastive (CAM)."""

from spin_d3rlpy.asm.objectives.base import ObjectiveLoss, PretrainingObjective, Validation
from spin_d3rlpy.asm.objectives.contrastive import ContrastiveActionModeling
from spin_d3rlpy.asm.objectives.masked import (
    AnyOrderActionModeling,
    MaskedAccuracy,
    MaskedActionModeling,
    mask_actions,
    masked_accuracy,
    masked_action_loss,
)
from spin_d3rlpy.asm.objectives.variational import VariationalActionModeling

__all__ = [
    "AnyOrderActionModeling",
    "ContrastiveActionModeling",
    "MaskedAccuracy",
    "MaskedActionModeling",
    "ObjectiveLoss",
    "PretrainingObjective",
    "Validation",
    "VariationalActionModeling",
    "mask_actions",
    "masked_accuracy",
    "masked_action_loss",
]
