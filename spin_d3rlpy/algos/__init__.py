"""Algorithms: one file per objective, combined with policies in `named`."""

from typing import Any

from spin_d3rlpy.algos import decqn, named
from spin_d3rlpy.algos.awac import AWAC, AWACConfig
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.bc import BC, BCConfig
from spin_d3rlpy.algos.bcq import BCQ, BCQConfig
from spin_d3rlpy.algos.decqn import *  # noqa: F403
from spin_d3rlpy.algos.idql import IDQL, IDQLConfig
from spin_d3rlpy.algos.iql import IQL, IQLConfig
from spin_d3rlpy.algos.named import *  # noqa: F403

__all__ = [
    "AWAC",
    "BC",
    "BCQ",
    "IDQL",
    "IQL",
    "AWACConfig",
    "BCConfig",
    "BCQConfig",
    "IDQLConfig",
    "IQLConfig",
    "MultiDiscreteAlgo",
]
__all__ += named.__all__
__all__ += decqn.__all__


def __getattr__(name: str) -> Any:
    return getattr(named, name)  # `SPINIQLConfig` and the like
