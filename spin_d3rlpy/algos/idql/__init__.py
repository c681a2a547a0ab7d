"""Acting by the best of several samples of any policy (IDQL), with the critics of IQL."""

from spin_d3rlpy.algos.idql.algorithm import IDQL as IDQL
from spin_d3rlpy.algos.idql.config import IDQLConfig as IDQLConfig
