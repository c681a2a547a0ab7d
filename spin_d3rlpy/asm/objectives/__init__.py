"""Tasks that pre-train the ASM: masked (MAM, SPIN's own), variational (VAM), contrastive (CAM)."""

from spin_d3rlpy.asm.objectives.any_order import AnyOrderActionModelling
from spin_d3rlpy.asm.objectives.base import ObjectiveLoss, PretrainingObjective, Validation
from spin_d3rlpy.asm.objectives.contrastive import ContrastiveActionModelling
from spin_d3rlpy.asm.objectives.masked import (
    MaskedAccuracy,
    MaskedActionModelling,
    mask_actions,
    masked_accuracy,
    masked_action_loss,
)
from spin_d3rlpy.asm.objectives.variational import VariationalActionModelling

__all__ = [
    "AnyOrderActionModelling",
    "ContrastiveActionModelling",
    "MaskedAccuracy",
    "MaskedActionModelling",
    "ObjectiveLoss",
    "PretrainingObjective",
    "Validation",
    "VariationalActionModelling",
    "mask_actions",
    "masked_accuracy",
    "masked_action_loss",
]
