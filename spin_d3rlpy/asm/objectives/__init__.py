"""Tasks that pre-train the ASM: masked (MAM, SPIN's own), variational (VAM), contrastive (CAM)."""

from spin_d3rlpy.asm.objectives.ablations import (
    ContrastiveActionModeling as ContrastiveActionModeling,
)
from spin_d3rlpy.asm.objectives.ablations import (
    VariationalActionModeling as VariationalActionModeling,
)
from spin_d3rlpy.asm.objectives.base import ObjectiveLoss as ObjectiveLoss
from spin_d3rlpy.asm.objectives.base import PretrainingObjective as PretrainingObjective
from spin_d3rlpy.asm.objectives.base import Validation as Validation
from spin_d3rlpy.asm.objectives.masked import AnyOrderActionModeling as AnyOrderActionModeling
from spin_d3rlpy.asm.objectives.masked import MaskedActionModeling as MaskedActionModeling
from spin_d3rlpy.asm.objectives.masked import mask_actions as mask_actions
from spin_d3rlpy.asm.objectives.masked import masked_accuracies as masked_accuracies
from spin_d3rlpy.asm.objectives.masked import masked_action_loss as masked_action_loss
