"""Everything that is there for speed only. `plain()` and `SPIN_D3RLPY_PLAIN=1` turn it off.

Networks ask `is_on()` where they have a fast twin; what they compute without it is what the tests
of this folder compare with and what the speed benchmark measures against.
"""

from spin_d3rlpy.fast import mlp, switch, transformer
from spin_d3rlpy.fast.dropout import Dropout, replace_dropout
from spin_d3rlpy.fast.memory import keep_freed_memory
from spin_d3rlpy.fast.mlp import sum_of_outputs
from spin_d3rlpy.fast.switch import is_on, plain

__all__ = [
    "Dropout",
    "is_on",
    "keep_freed_memory",
    "mlp",
    "plain",
    "replace_dropout",
    "sum_of_outputs",
    "switch",
    "transformer",
]
