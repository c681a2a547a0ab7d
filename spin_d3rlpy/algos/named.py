"""Named algorithms, {policy}{objective}: an objective (one file each) with one kind of policy."""

from __future__ import annotations

import functools

from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy.algos.awac import AWAC
from spin_d3rlpy.algos.bc import BC
from spin_d3rlpy.algos.bcq import BCQ
from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.algos.iql import IQL
from spin_d3rlpy.policies import (
    SAINT,
    SPIN,
    Autoregressive,
    Factored,
    RePreM,
    SPINDistill,
    SPINJoint,
)


class SPINIQL(IQL[SPIN], policy=SPIN):
    """SPIN with implicit Q-learning; pre-trains the ASM unless one is given."""


class SAINTIQL(IQL[SAINT], policy=SAINT):
    """The SPIN network trained end to end with implicit Q-learning."""


class FactoredIQL(IQL[Factored], policy=Factored):
    """Independent slots with implicit Q-learning."""


class AutoregressiveIQL(IQL[Autoregressive], policy=Autoregressive):
    """Slot after slot with implicit Q-learning."""


class SPINDistillIQL(IQL[SPINDistill], policy=SPINDistill):
    """SPIN-Distill with implicit Q-learning; pre-trains an ASM unless one is given."""


class RePreMIQL(IQL[RePreM], policy=RePreM):
    """RePreM with implicit Q-learning, after its pre-training."""


class SPINIDQL(IDQL[SPINJoint], policy=SPINJoint):
    """The best of several samples of the pre-trained ASM, by implicit Q-learning's critics."""


class SAINTIDQL(IDQL[SAINT], policy=SAINT):
    """The best of several samples of a cloned SAINT policy."""


class FactoredIDQL(IDQL[Factored], policy=Factored):
    """The best of several samples of cloned independent slots."""


class AutoregressiveIDQL(IDQL[Autoregressive], policy=Autoregressive):
    """The best of several samples of a cloned autoregressive policy."""


class SPINAWAC(AWAC[SPIN], policy=SPIN):
    """SPIN with advantage-weighted actor-critic; pre-trains the ASM unless one is given."""


class SAINTAWAC(AWAC[SAINT], policy=SAINT):
    """The SPIN network trained end to end with advantage-weighted actor-critic."""


class FactoredAWAC(AWAC[Factored], policy=Factored):
    """Independent slots with advantage-weighted actor-critic."""


class AutoregressiveAWAC(AWAC[Autoregressive], policy=Autoregressive):
    """Slot after slot with advantage-weighted actor-critic."""


class SPINDistillAWAC(AWAC[SPINDistill], policy=SPINDistill):
    """SPIN-Distill with advantage-weighted actor-critic; pre-trains an ASM unless one is given."""


class RePreMAWAC(AWAC[RePreM], policy=RePreM):
    """RePreM with advantage-weighted actor-critic, after its pre-training."""


class SPINBCQ(BCQ[SPIN], policy=SPIN):
    """SPIN with batch-constrained Q-learning; pre-trains the ASM unless one is given."""


class SAINTBCQ(BCQ[SAINT], policy=SAINT):
    """The SPIN network trained end to end with batch-constrained Q-learning."""


class FactoredBCQ(
    BCQ[Factored],
    # Without dropout, as in the published code.
    policy=functools.partial(Factored, VectorEncoderFactory(hidden_units=[256, 256])),
):
    """Independent slots with batch-constrained Q-learning."""


class AutoregressiveBCQ(BCQ[Autoregressive], policy=Autoregressive):
    """Slot after slot with batch-constrained Q-learning."""


class SPINDistillBCQ(BCQ[SPINDistill], policy=SPINDistill):
    """SPIN-Distill with batch-constrained Q-learning; pre-trains an ASM unless one is given."""


class RePreMBCQ(BCQ[RePreM], policy=RePreM):
    """RePreM with batch-constrained Q-learning, after its pre-training."""


class SPINBC(BC[SPIN], policy=SPIN):
    """SPIN with behavior cloning; pre-trains the ASM unless one is given."""


class SAINTBC(BC[SAINT], policy=SAINT):
    """The SPIN network trained end to end with behavior cloning."""


class FactoredBC(BC[Factored], policy=Factored):
    """Independent slots with behavior cloning."""


class AutoregressiveBC(BC[Autoregressive], policy=Autoregressive):
    """Slot after slot with behavior cloning."""
