"""Algorithms: one file or folder per objective, combined with policies in `named`."""

from spin_d3rlpy.algos.awac import AWAC as AWAC
from spin_d3rlpy.algos.awac import AWACConfig as AWACConfig
from spin_d3rlpy.algos.base import MultiDiscreteAlgo as MultiDiscreteAlgo
from spin_d3rlpy.algos.bc import BC as BC
from spin_d3rlpy.algos.bc import BCConfig as BCConfig
from spin_d3rlpy.algos.bcq import BCQ as BCQ
from spin_d3rlpy.algos.bcq import BCQConfig as BCQConfig
from spin_d3rlpy.algos.brave import BraVE as BraVE
from spin_d3rlpy.algos.brave import BraVEConfig as BraVEConfig
from spin_d3rlpy.algos.decqn import *  # noqa: F403
from spin_d3rlpy.algos.idql import IDQL as IDQL
from spin_d3rlpy.algos.idql import IDQLConfig as IDQLConfig
from spin_d3rlpy.algos.iql import IQL as IQL
from spin_d3rlpy.algos.iql import IQLConfig as IQLConfig
from spin_d3rlpy.algos.named import *  # noqa: F403
