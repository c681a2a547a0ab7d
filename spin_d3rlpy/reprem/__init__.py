"""RePreM, trajectory-centric masked pre-training: what SPIN is compared with."""

from spin_d3rlpy.reprem.model import RePreM, RePreMConfig
from spin_d3rlpy.reprem.pretraining import RePreMPretrainingConfig, pretrain_reprem

__all__ = ["RePreM", "RePreMConfig", "RePreMPretrainingConfig", "pretrain_reprem"]
