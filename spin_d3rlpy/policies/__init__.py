"""Policies over MultiDiscrete actions and the parts of a config that choose them."""

from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig as AutoregressiveConfig
from spin_d3rlpy.policies.autoregressive import AutoregressivePolicy as AutoregressivePolicy
from spin_d3rlpy.policies.base import FactoredPolicy as FactoredPolicy
from spin_d3rlpy.policies.base import IndependentPolicy as IndependentPolicy
from spin_d3rlpy.policies.base import Policy as Policy
from spin_d3rlpy.policies.factories import SAINT as SAINT
from spin_d3rlpy.policies.factories import SPIN as SPIN
from spin_d3rlpy.policies.factories import Autoregressive as Autoregressive
from spin_d3rlpy.policies.factories import Factored as Factored
from spin_d3rlpy.policies.factories import PolicyFactory as PolicyFactory
from spin_d3rlpy.policies.factories import RePreM as RePreM
from spin_d3rlpy.policies.factories import SPINDistill as SPINDistill
from spin_d3rlpy.policies.factories import SPINJoint as SPINJoint
from spin_d3rlpy.policies.features import SlotPolicy as SlotPolicy
