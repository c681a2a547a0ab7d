"""Offline reinforcement learning for MultiDiscrete actions, as a plugin of d3rlpy.

Importing this package registers the environments; torch and d3rlpy are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

import spin_envs  # noqa: F401  registers the environments
from spin_d3rlpy import _quiet_import
from spin_d3rlpy._version import __version__

if TYPE_CHECKING:
    from spin_d3rlpy.algos.decqn import *  # noqa: F403
    from spin_d3rlpy.algos.files import load_policy, save_policy
    from spin_d3rlpy.algos.named import *  # noqa: F403
    from spin_d3rlpy.asm import (
        ActionStructureModel,
        MLPConfig,
        PretrainingConfig,
        TransformerConfig,
        load_asm,
        save_asm,
    )
    from spin_d3rlpy.data import (
        DeviceReplayBuffer,
        create_replay_buffer,
        from_table,
        load_dataset,
        relabel,
        save_dataset,
    )
    from spin_d3rlpy.explorers import MultiDiscreteEpsilonGreedy
    from spin_d3rlpy.metrics import LockstepEvaluator, MultiDiscreteActionMatchEvaluator
    from spin_d3rlpy.ope import MultiDiscreteFQE
    from spin_d3rlpy.policies import (
        AutoregressiveEncoderFactory,
        SAINTEncoderFactory,
        SPINDistillEncoderFactory,
        SPINEncoderFactory,
    )

__all__ = [
    "SAINTAWAC",
    "SAINTBC",
    "SAINTBCQ",
    "SAINTIQL",
    "SPINAWAC",
    "SPINBC",
    "SPINBCQ",
    "SPINIDQL",
    "SPINIQL",
    "ActionStructureModel",
    "AutoregressiveAWAC",
    "AutoregressiveBC",
    "AutoregressiveBCQ",
    "AutoregressiveEncoderFactory",
    "AutoregressiveIQL",
    "DecQN",
    "DecQNBCQ",
    "DecQNCQL",
    "DecQNIQL",
    "DecQNOneStep",
    "DeviceReplayBuffer",
    "FactoredAWAC",
    "FactoredBC",
    "FactoredBCQ",
    "FactoredIDQL",
    "FactoredIQL",
    "LockstepEvaluator",
    "MLPConfig",
    "MultiDiscreteActionMatchEvaluator",
    "MultiDiscreteEpsilonGreedy",
    "MultiDiscreteFQE",
    "PretrainingConfig",
    "RePreMIQL",
    "SAINTEncoderFactory",
    "SPINDistillAWAC",
    "SPINDistillBCQ",
    "SPINDistillEncoderFactory",
    "SPINDistillIQL",
    "SPINEncoderFactory",
    "TransformerConfig",
    "__version__",
    "create_replay_buffer",
    "from_table",
    "load_asm",
    "load_dataset",
    "load_policy",
    "relabel",
    "save_asm",
    "save_dataset",
    "save_policy",
]

# Where public names are; further algorithms and configs (`SPINIQLConfig`) are there, too.
_HOMES = (
    *("algos", "algos.files", "asm", "asm.distillation", "data", "explorers", "metrics", "ope"),
    *("policies", "reprem"),
)

_FURTHER = ("Config", "Factory", "IDQL", "AWAC", "BCQ", "load_published_asm")

_quiet_import.install()


def __getattr__(name: str) -> Any:
    if name in __all__ or name.endswith(_FURTHER):
        for home in _HOMES:
            module = importlib.import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
