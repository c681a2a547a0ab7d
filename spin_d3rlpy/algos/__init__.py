"""Algorithms: one file per objective, named variants in `named`."""

from spin_d3rlpy.algos.decqn import DecQN, DecQNConfig
from spin_d3rlpy.algos.iql import IQL, IQLConfig
from spin_d3rlpy.algos.named import (
    SAINTIQL,
    SPINIQL,
    FactoredIQL,
    FactoredIQLConfig,
    SAINTIQLConfig,
    SPINIQLConfig,
)

__all__ = [
    "IQL",
    "SAINTIQL",
    "SPINIQL",
    "DecQN",
    "DecQNConfig",
    "FactoredIQL",
    "FactoredIQLConfig",
    "IQLConfig",
    "SAINTIQLConfig",
    "SPINIQLConfig",
]
