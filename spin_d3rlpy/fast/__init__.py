"""Everything that is there for speed only. `plain()` and `SPIN_D3RLPY_PLAIN=1` turn it off.

Networks ask `is_on()` where they have a fast twin; tests compare it with what they compute without.
"""

from spin_d3rlpy.fast import losses as losses
from spin_d3rlpy.fast import mlp as mlp
from spin_d3rlpy.fast import switch as switch
from spin_d3rlpy.fast import transformer as transformer
from spin_d3rlpy.fast.cpu import give_back_freed_memory as give_back_freed_memory
from spin_d3rlpy.fast.cpu import keep_freed_memory as keep_freed_memory
from spin_d3rlpy.fast.cpu import sum_of_outputs as sum_of_outputs
from spin_d3rlpy.fast.dropout import Dropout as Dropout
from spin_d3rlpy.fast.dropout import replace_dropout as replace_dropout
from spin_d3rlpy.fast.switch import is_on as is_on
from spin_d3rlpy.fast.switch import plain as plain
