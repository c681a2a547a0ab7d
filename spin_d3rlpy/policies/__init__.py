"""Policies over MultiDiscrete actions and the d3rlpy encoder factories that choose them."""

from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from spin_d3rlpy.policies.base import FactoredPolicy, IndependentPolicy, Policy
from spin_d3rlpy.policies.factories import (
    AutoregressiveEncoderFactory,
    JointEncoderFactory,
    PolicyFactory,
    RePreMEncoderFactory,
    SAINTEncoderFactory,
    SPINDistillEncoderFactory,
    SPINEncoderFactory,
    create_policy,
)
from spin_d3rlpy.policies.slot import SlotPolicy

__all__ = [
    "AutoregressiveConfig",
    "AutoregressiveEncoderFactory",
    "AutoregressivePolicy",
    "FactoredPolicy",
    "IndependentPolicy",
    "JointEncoderFactory",
    "Policy",
    "PolicyFactory",
    "RePreMEncoderFactory",
    "SAINTEncoderFactory",
    "SPINDistillEncoderFactory",
    "SPINEncoderFactory",
    "SlotPolicy",
    "create_policy",
]
