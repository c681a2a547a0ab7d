"""The Action Structure Model: its network, self-supervised pre-training and files."""

from spin_d3rlpy.asm.model import ActionStructureModel as ActionStructureModel
from spin_d3rlpy.asm.model import MLPConfig as MLPConfig
from spin_d3rlpy.asm.model import TransformerConfig as TransformerConfig
from spin_d3rlpy.asm.objectives.masked import masked_action_loss as masked_action_loss
from spin_d3rlpy.asm.pretraining import PretrainingConfig as PretrainingConfig
from spin_d3rlpy.asm.pretraining import pretrain as pretrain
from spin_d3rlpy.asm.published import load_published_asm as load_published_asm
from spin_d3rlpy.asm.saving import load_asm as load_asm
from spin_d3rlpy.asm.saving import save_asm as save_asm
