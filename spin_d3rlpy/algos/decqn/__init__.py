"""DecQN and its offline variants: factored Q-learning without a policy gradient."""

from spin_d3rlpy.algos.decqn.base import DecQN, DecQNConfig, DecQNCQL, DecQNCQLConfig
from spin_d3rlpy.algos.decqn.imitating import (
    DecQNBCQ,
    DecQNBCQConfig,
    DecQNIQL,
    DecQNIQLConfig,
    DecQNOneStep,
    DecQNOneStepConfig,
)

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
