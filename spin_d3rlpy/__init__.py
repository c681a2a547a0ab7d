"""Offline reinforcement learning for MultiDiscrete actions, as a plugin of d3rlpy.

Importing this package registers the environments; torch and d3rlpy are imported on first use.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

import spin_envs  # noqa: F401  registers the environments
from spin_d3rlpy import _import_order, _quiet_import
from spin_d3rlpy._version import __version__

if TYPE_CHECKING:
    from spin_d3rlpy.algos.actor_critic import (
        ActorCriticConfig,
    )
    from spin_d3rlpy.algos.awac import (
        AWAC,
        AWACConfig,
    )
    from spin_d3rlpy.algos.bc import (
        BCConfig,
    )
    from spin_d3rlpy.algos.bcq import (
        BCQ,
        BCQConfig,
    )
    from spin_d3rlpy.algos.config import (
        MultiDiscreteConfig,
        PolicyConfig,
    )
    from spin_d3rlpy.algos.decqn import (
        DecQN,
        DecQNBCQ,
        DecQNBCQConfig,
        DecQNConfig,
        DecQNCQL,
        DecQNCQLConfig,
        DecQNIQL,
        DecQNIQLConfig,
        DecQNOneStep,
        DecQNOneStepConfig,
    )
    from spin_d3rlpy.algos.explorers import (
        MultiDiscreteEpsilonGreedy,
    )
    from spin_d3rlpy.algos.files import (
        load_policy,
        save_policy,
    )
    from spin_d3rlpy.algos.idql import (
        IDQL,
        IDQLConfig,
    )
    from spin_d3rlpy.algos.iql import (
        IQLConfig,
    )
    from spin_d3rlpy.algos.named import (
        SAINTAWAC,
        SAINTBC,
        SAINTBCQ,
        SAINTIDQL,
        SAINTIQL,
        SPINAWAC,
        SPINBC,
        SPINBCQ,
        SPINIDQL,
        SPINIQL,
        AutoregressiveAWAC,
        AutoregressiveAWACConfig,
        AutoregressiveBC,
        AutoregressiveBCConfig,
        AutoregressiveBCQ,
        AutoregressiveBCQConfig,
        AutoregressiveIDQL,
        AutoregressiveIDQLConfig,
        AutoregressiveIQL,
        AutoregressiveIQLConfig,
        FactoredAWAC,
        FactoredAWACConfig,
        FactoredBC,
        FactoredBCConfig,
        FactoredBCQ,
        FactoredBCQConfig,
        FactoredIDQL,
        FactoredIDQLConfig,
        FactoredIQL,
        FactoredIQLConfig,
        RePreMAWAC,
        RePreMAWACConfig,
        RePreMBCQ,
        RePreMBCQConfig,
        RePreMIQL,
        RePreMIQLConfig,
        SAINTAWACConfig,
        SAINTBCConfig,
        SAINTBCQConfig,
        SAINTIDQLConfig,
        SAINTIQLConfig,
        SPINAWACConfig,
        SPINBCConfig,
        SPINBCQConfig,
        SPINDistillAWAC,
        SPINDistillAWACConfig,
        SPINDistillBCQ,
        SPINDistillBCQConfig,
        SPINDistillIQL,
        SPINDistillIQLConfig,
        SPINIDQLConfig,
        SPINIQLConfig,
    )
    from spin_d3rlpy.algos.trust import (
        Trust,
    )
    from spin_d3rlpy.asm import (
        ActionStructureModel,
        MLPConfig,
        PretrainingConfig,
        TransformerConfig,
        load_asm,
        load_published_asm,
        save_asm,
    )
    from spin_d3rlpy.asm.distillation import (
        DistillationConfig,
    )
    from spin_d3rlpy.asm.entities import (
        EntityConfig,
    )
    from spin_d3rlpy.data import (
        DeviceReplayBuffer,
        collect,
        create_replay_buffer,
        from_table,
        load_dataset,
        relabel,
        save_dataset,
        with_rewards,
    )
    from spin_d3rlpy.data.layouts import (
        ActionLayout,
    )
    from spin_d3rlpy.evaluation.doubly_robust import (
        doubly_robust,
    )
    from spin_d3rlpy.evaluation.fqe import (
        MultiDiscreteFQE,
        MultiDiscreteFQEConfig,
    )
    from spin_d3rlpy.evaluation.importance import (
        importance_sampling,
    )
    from spin_d3rlpy.evaluation.metrics import (
        LockstepEvaluator,
        MultiDiscreteActionMatchEvaluator,
    )
    from spin_d3rlpy.evaluation.probabilities import (
        BehaviorProbabilities,
        GreedyPolicy,
        SampledPolicy,
    )
    from spin_d3rlpy.evaluation.slates import (
        slate_value,
    )
    from spin_d3rlpy.policies import (
        AutoregressiveConfig,
        AutoregressiveEncoderFactory,
        JointEncoderFactory,
        PolicyFactory,
        RePreMEncoderFactory,
        SAINTEncoderFactory,
        SPINDistillEncoderFactory,
        SPINEncoderFactory,
    )
    from spin_d3rlpy.policies.reprem import (
        RePreMConfig,
        RePreMPretrainingConfig,
    )
    from spin_d3rlpy.runs.hub import (
        load_from_hub,
        push_to_hub,
        save_for_hub,
    )

# The module of each public name, which is imported when the name is first used.
_MODULES = {
    "ActorCriticConfig": "algos.actor_critic",
    "AWAC": "algos.awac",
    "AWACConfig": "algos.awac",
    "BCConfig": "algos.bc",
    "BCQ": "algos.bcq",
    "BCQConfig": "algos.bcq",
    "MultiDiscreteConfig": "algos.config",
    "PolicyConfig": "algos.config",
    "DecQN": "algos.decqn",
    "DecQNBCQ": "algos.decqn",
    "DecQNBCQConfig": "algos.decqn",
    "DecQNCQL": "algos.decqn",
    "DecQNCQLConfig": "algos.decqn",
    "DecQNConfig": "algos.decqn",
    "DecQNIQL": "algos.decqn",
    "DecQNIQLConfig": "algos.decqn",
    "DecQNOneStep": "algos.decqn",
    "DecQNOneStepConfig": "algos.decqn",
    "load_policy": "algos.files",
    "save_policy": "algos.files",
    "IDQL": "algos.idql",
    "IDQLConfig": "algos.idql",
    "IQLConfig": "algos.iql",
    "AutoregressiveAWAC": "algos.named",
    "AutoregressiveAWACConfig": "algos.named",
    "AutoregressiveBC": "algos.named",
    "AutoregressiveBCConfig": "algos.named",
    "AutoregressiveBCQ": "algos.named",
    "AutoregressiveBCQConfig": "algos.named",
    "AutoregressiveIDQL": "algos.named",
    "AutoregressiveIDQLConfig": "algos.named",
    "AutoregressiveIQL": "algos.named",
    "AutoregressiveIQLConfig": "algos.named",
    "FactoredAWAC": "algos.named",
    "FactoredAWACConfig": "algos.named",
    "FactoredBC": "algos.named",
    "FactoredBCConfig": "algos.named",
    "FactoredBCQ": "algos.named",
    "FactoredBCQConfig": "algos.named",
    "FactoredIDQL": "algos.named",
    "FactoredIDQLConfig": "algos.named",
    "FactoredIQL": "algos.named",
    "FactoredIQLConfig": "algos.named",
    "RePreMAWAC": "algos.named",
    "RePreMAWACConfig": "algos.named",
    "RePreMBCQ": "algos.named",
    "RePreMBCQConfig": "algos.named",
    "RePreMIQL": "algos.named",
    "RePreMIQLConfig": "algos.named",
    "SAINTAWAC": "algos.named",
    "SAINTAWACConfig": "algos.named",
    "SAINTBC": "algos.named",
    "SAINTBCConfig": "algos.named",
    "SAINTBCQ": "algos.named",
    "SAINTBCQConfig": "algos.named",
    "SAINTIDQL": "algos.named",
    "SAINTIDQLConfig": "algos.named",
    "SAINTIQL": "algos.named",
    "SAINTIQLConfig": "algos.named",
    "SPINAWAC": "algos.named",
    "SPINAWACConfig": "algos.named",
    "SPINBC": "algos.named",
    "SPINBCConfig": "algos.named",
    "SPINBCQ": "algos.named",
    "SPINBCQConfig": "algos.named",
    "SPINDistillAWAC": "algos.named",
    "SPINDistillAWACConfig": "algos.named",
    "SPINDistillBCQ": "algos.named",
    "SPINDistillBCQConfig": "algos.named",
    "SPINDistillIQL": "algos.named",
    "SPINDistillIQLConfig": "algos.named",
    "SPINIDQL": "algos.named",
    "SPINIDQLConfig": "algos.named",
    "SPINIQL": "algos.named",
    "SPINIQLConfig": "algos.named",
    "ActionStructureModel": "asm",
    "MLPConfig": "asm",
    "PretrainingConfig": "asm",
    "TransformerConfig": "asm",
    "load_asm": "asm",
    "load_published_asm": "asm",
    "save_asm": "asm",
    "DistillationConfig": "asm.distillation",
    "EntityConfig": "asm.entities",
    "Trust": "algos.trust",
    "ActionLayout": "data.layouts",
    "DeviceReplayBuffer": "data",
    "collect": "data",
    "create_replay_buffer": "data",
    "from_table": "data",
    "load_dataset": "data",
    "relabel": "data",
    "with_rewards": "data",
    "save_dataset": "data",
    "MultiDiscreteEpsilonGreedy": "algos.explorers",
    "BehaviorProbabilities": "evaluation.probabilities",
    "GreedyPolicy": "evaluation.probabilities",
    "SampledPolicy": "evaluation.probabilities",
    "doubly_robust": "evaluation.doubly_robust",
    "importance_sampling": "evaluation.importance",
    "slate_value": "evaluation.slates",
    "LockstepEvaluator": "evaluation.metrics",
    "MultiDiscreteActionMatchEvaluator": "evaluation.metrics",
    "MultiDiscreteFQE": "evaluation.fqe",
    "MultiDiscreteFQEConfig": "evaluation.fqe",
    "AutoregressiveConfig": "policies",
    "AutoregressiveEncoderFactory": "policies",
    "JointEncoderFactory": "policies",
    "PolicyFactory": "policies",
    "RePreMEncoderFactory": "policies",
    "SAINTEncoderFactory": "policies",
    "SPINDistillEncoderFactory": "policies",
    "SPINEncoderFactory": "policies",
    "RePreMConfig": "policies.reprem",
    "RePreMPretrainingConfig": "policies.reprem",
    "load_from_hub": "runs.hub",
    "push_to_hub": "runs.hub",
    "save_for_hub": "runs.hub",
}

__all__ = [
    "AWAC",
    "BCQ",
    "IDQL",
    "SAINTAWAC",
    "SAINTBC",
    "SAINTBCQ",
    "SAINTIDQL",
    "SAINTIQL",
    "SPINAWAC",
    "SPINBC",
    "SPINBCQ",
    "SPINIDQL",
    "SPINIQL",
    "AWACConfig",
    "ActionLayout",
    "ActionStructureModel",
    "ActorCriticConfig",
    "AutoregressiveAWAC",
    "AutoregressiveAWACConfig",
    "AutoregressiveBC",
    "AutoregressiveBCConfig",
    "AutoregressiveBCQ",
    "AutoregressiveBCQConfig",
    "AutoregressiveConfig",
    "AutoregressiveEncoderFactory",
    "AutoregressiveIDQL",
    "AutoregressiveIDQLConfig",
    "AutoregressiveIQL",
    "AutoregressiveIQLConfig",
    "BCConfig",
    "BCQConfig",
    "BehaviorProbabilities",
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
    "DeviceReplayBuffer",
    "DistillationConfig",
    "EntityConfig",
    "FactoredAWAC",
    "FactoredAWACConfig",
    "FactoredBC",
    "FactoredBCConfig",
    "FactoredBCQ",
    "FactoredBCQConfig",
    "FactoredIDQL",
    "FactoredIDQLConfig",
    "FactoredIQL",
    "FactoredIQLConfig",
    "GreedyPolicy",
    "IDQLConfig",
    "IQLConfig",
    "JointEncoderFactory",
    "LockstepEvaluator",
    "MLPConfig",
    "MultiDiscreteActionMatchEvaluator",
    "MultiDiscreteConfig",
    "MultiDiscreteEpsilonGreedy",
    "MultiDiscreteFQE",
    "MultiDiscreteFQEConfig",
    "PolicyConfig",
    "PolicyFactory",
    "PretrainingConfig",
    "RePreMAWAC",
    "RePreMAWACConfig",
    "RePreMBCQ",
    "RePreMBCQConfig",
    "RePreMConfig",
    "RePreMEncoderFactory",
    "RePreMIQL",
    "RePreMIQLConfig",
    "RePreMPretrainingConfig",
    "SAINTAWACConfig",
    "SAINTBCConfig",
    "SAINTBCQConfig",
    "SAINTEncoderFactory",
    "SAINTIDQLConfig",
    "SAINTIQLConfig",
    "SPINAWACConfig",
    "SPINBCConfig",
    "SPINBCQConfig",
    "SPINDistillAWAC",
    "SPINDistillAWACConfig",
    "SPINDistillBCQ",
    "SPINDistillBCQConfig",
    "SPINDistillEncoderFactory",
    "SPINDistillIQL",
    "SPINDistillIQLConfig",
    "SPINEncoderFactory",
    "SPINIDQLConfig",
    "SPINIQLConfig",
    "SampledPolicy",
    "TransformerConfig",
    "Trust",
    "__version__",
    "collect",
    "create_replay_buffer",
    "doubly_robust",
    "from_table",
    "importance_sampling",
    "load_asm",
    "load_dataset",
    "load_from_hub",
    "load_policy",
    "load_published_asm",
    "push_to_hub",
    "relabel",
    "save_asm",
    "save_dataset",
    "save_for_hub",
    "save_policy",
    "slate_value",
    "with_rewards",
]


def _register_algorithms() -> None:
    """Imports the algorithms, so that `d3rlpy.load_learnable` knows their files.

    Skipped while a module of this package is still being imported.
    """
    light = {"spin_d3rlpy", *(f"spin_d3rlpy.{name}" for name in _LIGHT)}
    if not any(name.startswith("spin_d3rlpy") for name in sys.modules.keys() - light):
        importlib.import_module("spin_d3rlpy.algos")


_LIGHT = ("_version", "_import_order", "_quiet_import")  # what this module itself imports
_quiet_import.install(_import_order.import_triton_before_graphics, _register_algorithms)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
