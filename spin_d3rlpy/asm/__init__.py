"""The Action Structure Model: its network, self-supervised pre-training and files."""

from spin_d3rlpy.asm.files import load_asm, save_asm
from spin_d3rlpy.asm.mlp import MLPConfig
from spin_d3rlpy.asm.model import ActionStructureModel, TransformerConfig
from spin_d3rlpy.asm.objectives import masked_action_loss
from spin_d3rlpy.asm.pretraining import PretrainingConfig, pretrain
from spin_d3rlpy.asm.published import load_published_asm

__all__ = [
    "ActionStructureModel",
    "MLPConfig",
    "PretrainingConfig",
    "TransformerConfig",
    "load_asm",
    "load_published_asm",
    "masked_action_loss",
    "pretrain",
    "save_asm",
]
