"""Policies over MultiDiscrete actions and the d3rlpy encoder factories that choose them."""

from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig as AutoregressiveConfig
from spin_d3rlpy.policies.autoregressive import AutoregressivePolicy as AutoregressivePolicy
from spin_d3rlpy.policies.base import FactoredPolicy as FactoredPolicy
from spin_d3rlpy.policies.base import IndependentPolicy as IndependentPolicy
from spin_d3rlpy.policies.base import Policy as Policy
from spin_d3rlpy.policies.factories import (
    AutoregressiveEncoderFactory as AutoregressiveEncoderFactory,
)
from spin_d3rlpy.policies.factories import JointEncoderFactory as JointEncoderFactory
from spin_d3rlpy.policies.factories import PolicyFactory as PolicyFactory
from spin_d3rlpy.policies.factories import RePreMEncoderFactory as RePreMEncoderFactory
from spin_d3rlpy.policies.factories import SAINTEncoderFactory as SAINTEncoderFactory
from spin_d3rlpy.policies.factories import SPINDistillEncoderFactory as SPINDistillEncoderFactory
from spin_d3rlpy.policies.factories import SPINEncoderFactory as SPINEncoderFactory
from spin_d3rlpy.policies.factories import create_policy as create_policy
from spin_d3rlpy.policies.features import SlotPolicy as SlotPolicy
