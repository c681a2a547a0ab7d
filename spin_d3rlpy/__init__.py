"""Offline reinforcement learning for MultiDiscrete actions, as a plugin of d3rlpy."""

from spin_d3rlpy._compat import import_d3rlpy_quietly, silence_gym_notice

silence_gym_notice()
import_d3rlpy_quietly()

import spin_envs  # registers the environments
from spin_d3rlpy._version import __version__
from spin_d3rlpy.algos import (
    SAINTIQL,
    SPINIQL,
    DecQN,
    DecQNConfig,
    FactoredIQL,
    FactoredIQLConfig,
    SAINTIQLConfig,
    SPINIQLConfig,
)
from spin_d3rlpy.asm import (
    ActionStructureModel,
    PretrainingConfig,
    TransformerConfig,
    load_asm,
    save_asm,
)
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.metrics import LockstepEvaluator
from spin_d3rlpy.policies import SAINTEncoderFactory, SPINEncoderFactory

__all__ = [
    "SAINTIQL",
    "SPINIQL",
    "ActionStructureModel",
    "DecQN",
    "DecQNConfig",
    "DeviceReplayBuffer",
    "FactoredIQL",
    "FactoredIQLConfig",
    "LockstepEvaluator",
    "PretrainingConfig",
    "SAINTEncoderFactory",
    "SAINTIQLConfig",
    "SPINEncoderFactory",
    "SPINIQLConfig",
    "TransformerConfig",
    "__version__",
    "load_asm",
    "load_dataset",
    "save_asm",
    "spin_envs",
]
