"""DecQN and its offline variants: factored Q-learning without a policy gradient."""

from spin_d3rlpy.algos.decqn.base import DecQN, DecQNConfig
from spin_d3rlpy.algos.decqn.bcq import DecQNBCQ, DecQNBCQConfig
from spin_d3rlpy.algos.decqn.cql import DecQNCQL, DecQNCQLConfig
from spin_d3rlpy.algos.decqn.iql import DecQNIQL, DecQNIQLConfig
from spin_d3rlpy.algos.decqn.one_step import DecQNOneStep, DecQNOneStepConfig

__all__ = [
    "DecQN",
    "DecQNBCQ",
    "DecQNBCQConfig",
    "DecQNCQL",
    "DecQNCQLConfig",
    "DecQNConfig",
    "DecQNIQL",
    "DecQNIQLConfig",
    "DecQNOneStep",
    "DecQNOneStepConfig",
]
