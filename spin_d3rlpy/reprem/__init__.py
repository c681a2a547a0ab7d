"""RePreM, trajectory-centric masked pre-training: a baseline for SPIN."""

from spin_d3rlpy.reprem.model import RePreM, RePreMConfig
from spin_d3rlpy.reprem.pretraining import RePreMPretrainingConfig, pretrain_reprem

__all__ = ["RePreM", "RePreMConfig", "RePreMPretrainingConfig", "pretrain_reprem"]
