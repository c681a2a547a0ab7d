# Written by `python -m tests.typing.stubs`; do not edit.
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from d3rlpy.base import DeviceArg
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from d3rlpy.optimizers.optimizers import OptimizerFactory
from d3rlpy.preprocessing.action_scalers import ActionScaler
from d3rlpy.preprocessing.observation_scalers import ObservationScaler
from d3rlpy.preprocessing.reward_scalers import RewardScaler

from spin_d3rlpy.algos.awac import AWAC, AWACConfig
from spin_d3rlpy.algos.bc import BC, BCConfig
from spin_d3rlpy.algos.bcq import BCQ, BCQConfig
from spin_d3rlpy.algos.idql import IDQL, IDQLConfig
from spin_d3rlpy.algos.iql import IQL, IQLConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import ActionStructureModel, MLPConfig, TransformerConfig
from spin_d3rlpy.asm.pretraining import PretrainingConfig
from spin_d3rlpy.data.weights import TrajectoryWeights
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig
from spin_d3rlpy.policies.factories import (
    AutoregressiveEncoderFactory,
    JointEncoderFactory,
    RePreMEncoderFactory,
    SAINTEncoderFactory,
    SPINDistillEncoderFactory,
    SPINEncoderFactory,
)
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig
from spin_envs.layout import ActionLayout

class _IQLFields(TypedDict, total=False):
    batch_size: int
    gamma: float
    observation_scaler: ObservationScaler | None
    action_scaler: ActionScaler | None
    reward_scaler: RewardScaler | None
    compile_graph: bool | Literal["auto"]
    nvec: list[int] | None
    layout: ActionLayout | None
    rules: list[Any] | None
    n_steps: int
    trajectory_weights: TrajectoryWeights | None
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_warmup: float
    precision: Literal["float32", "bfloat16", "tf32", "auto"]
    actor_learning_rate: float
    actor_optim_factory: OptimizerFactory
    imitation_batch_size: int | None
    ema_decay: float
    tau: float
    n_critics: int
    decomposition: Literal["sum", "mean"]
    monte_carlo_share: float
    critic_learning_rate: float
    critic_optim_factory: OptimizerFactory
    critic_encoder_factory: EncoderFactory
    weight_ess: float | None
    value_encoder_factory: EncoderFactory
    expectile: float
    weight_temp: float
    max_weight: float
    joint_critic: bool

class _SPINFields(TypedDict, total=False):
    actor_encoder_factory: SPINEncoderFactory
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    architecture: Literal["transformer", "mlp", "entities"]
    mlp: MLPConfig
    entities: EntityConfig
    frozen_dropout: bool
    train_queries: bool
    query_init: Literal["random", "mask"]
    head_init: Literal["random", "asm"]
    cache_features: bool
    train_trunk: bool

class _SPIN:
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    architecture: Literal["transformer", "mlp", "entities"]
    mlp: MLPConfig
    entities: EntityConfig
    frozen_dropout: bool
    train_queries: bool
    query_init: Literal["random", "mask"]
    head_init: Literal["random", "asm"]
    cache_features: bool
    train_trunk: bool

class _SPINIQLFields(_IQLFields, _SPINFields, total=False): ...

class SPINIQLConfig(_SPIN, IQLConfig):
    actor_encoder_factory: SPINEncoderFactory
    def __init__(self, **fields: Unpack[_SPINIQLFields]) -> None: ...

class SPINIQL(IQL):
    config_class: type[SPINIQLConfig]
    @property
    def config(self) -> SPINIQLConfig: ...
    def __init__(
        self,
        config: SPINIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINIQLFields],
    ) -> None: ...

class _SAINTFields(TypedDict, total=False):
    actor_encoder_factory: SAINTEncoderFactory
    entities: EntityConfig | None
    transformer: TransformerConfig

class _SAINT:
    entities: EntityConfig | None
    transformer: TransformerConfig

class _SAINTIQLFields(_IQLFields, _SAINTFields, total=False): ...

class SAINTIQLConfig(_SAINT, IQLConfig):
    actor_encoder_factory: SAINTEncoderFactory
    def __init__(self, **fields: Unpack[_SAINTIQLFields]) -> None: ...

class SAINTIQL(IQL):
    config_class: type[SAINTIQLConfig]
    @property
    def config(self) -> SAINTIQLConfig: ...
    def __init__(
        self,
        config: SAINTIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SAINTIQLFields],
    ) -> None: ...

class _VectorFields(TypedDict, total=False):
    actor_encoder_factory: EncoderFactory
    hidden_units: list[int]
    activation: str
    use_batch_norm: bool
    use_layer_norm: bool
    dropout_rate: float | None
    exclude_last_activation: bool
    last_activation: str | None

class _Vector:
    hidden_units: list[int]
    activation: str
    use_batch_norm: bool
    use_layer_norm: bool
    dropout_rate: float | None
    exclude_last_activation: bool
    last_activation: str | None

class _FactoredIQLFields(_IQLFields, _VectorFields, total=False): ...

class FactoredIQLConfig(_Vector, IQLConfig):
    actor_encoder_factory: EncoderFactory
    def __init__(self, **fields: Unpack[_FactoredIQLFields]) -> None: ...

class FactoredIQL(IQL):
    config_class: type[FactoredIQLConfig]
    @property
    def config(self) -> FactoredIQLConfig: ...
    def __init__(
        self,
        config: FactoredIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_FactoredIQLFields],
    ) -> None: ...

class _AutoregressiveFields(TypedDict, total=False):
    actor_encoder_factory: AutoregressiveEncoderFactory
    entities: EntityConfig | None
    sizes: AutoregressiveConfig

class _Autoregressive:
    entities: EntityConfig | None
    sizes: AutoregressiveConfig

class _AutoregressiveIQLFields(_IQLFields, _AutoregressiveFields, total=False): ...

class AutoregressiveIQLConfig(_Autoregressive, IQLConfig):
    actor_encoder_factory: AutoregressiveEncoderFactory
    def __init__(self, **fields: Unpack[_AutoregressiveIQLFields]) -> None: ...

class AutoregressiveIQL(IQL):
    config_class: type[AutoregressiveIQLConfig]
    @property
    def config(self) -> AutoregressiveIQLConfig: ...
    def __init__(
        self,
        config: AutoregressiveIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_AutoregressiveIQLFields],
    ) -> None: ...

class _SPINDistillFields(TypedDict, total=False):
    actor_encoder_factory: SPINDistillEncoderFactory
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    hidden_units: list[int]
    query_init: Literal["random", "mask"]
    head_init: Literal["random", "asm"]
    distillation: DistillationConfig
    cache_features: bool

class _SPINDistill:
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    hidden_units: list[int]
    query_init: Literal["random", "mask"]
    head_init: Literal["random", "asm"]
    distillation: DistillationConfig
    cache_features: bool

class _SPINDistillIQLFields(_IQLFields, _SPINDistillFields, total=False): ...

class SPINDistillIQLConfig(_SPINDistill, IQLConfig):
    actor_encoder_factory: SPINDistillEncoderFactory
    def __init__(self, **fields: Unpack[_SPINDistillIQLFields]) -> None: ...

class SPINDistillIQL(IQL):
    config_class: type[SPINDistillIQLConfig]
    @property
    def config(self) -> SPINDistillIQLConfig: ...
    def __init__(
        self,
        config: SPINDistillIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINDistillIQLFields],
    ) -> None: ...

class _RePreMFields(TypedDict, total=False):
    actor_encoder_factory: RePreMEncoderFactory
    sizes: RePreMConfig
    pretraining: RePreMPretrainingConfig
    cache_features: bool

class _RePreM:
    sizes: RePreMConfig
    pretraining: RePreMPretrainingConfig
    cache_features: bool

class _RePreMIQLFields(_IQLFields, _RePreMFields, total=False): ...

class RePreMIQLConfig(_RePreM, IQLConfig):
    actor_encoder_factory: RePreMEncoderFactory
    def __init__(self, **fields: Unpack[_RePreMIQLFields]) -> None: ...

class RePreMIQL(IQL):
    config_class: type[RePreMIQLConfig]
    @property
    def config(self) -> RePreMIQLConfig: ...
    def __init__(
        self,
        config: RePreMIQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_RePreMIQLFields],
    ) -> None: ...

class _IDQLFields(TypedDict, total=False):
    batch_size: int
    gamma: float
    observation_scaler: ObservationScaler | None
    action_scaler: ActionScaler | None
    reward_scaler: RewardScaler | None
    compile_graph: bool | Literal["auto"]
    nvec: list[int] | None
    layout: ActionLayout | None
    rules: list[Any] | None
    n_steps: int
    trajectory_weights: TrajectoryWeights | None
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_warmup: float
    precision: Literal["float32", "bfloat16", "tf32", "auto"]
    actor_learning_rate: float
    actor_optim_factory: OptimizerFactory
    imitation_batch_size: int | None
    ema_decay: float
    tau: float
    n_critics: int
    decomposition: Literal["sum", "mean"]
    monte_carlo_share: float
    critic_learning_rate: float
    critic_optim_factory: OptimizerFactory
    critic_encoder_factory: EncoderFactory
    weight_ess: float | None
    value_encoder_factory: EncoderFactory
    expectile: float
    weight_temp: float
    max_weight: float
    joint_critic: bool
    n_action_samples: int
    candidate_temperature: float
    value_temperature: float
    search_sweeps: int
    support: float
    held_out_share: float
    short_gammas: list[float]
    stricter_supports: list[float]
    search: Literal["auto", "always", "never"]

class _JointFields(TypedDict, total=False):
    actor_encoder_factory: JointEncoderFactory
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    architecture: Literal["transformer", "mlp", "entities"]
    mlp: MLPConfig
    entities: EntityConfig
    order: Literal["slots", "confidence", "margin"] | None
    slots_per_pass: int
    entropy_bound: float | None

class _Joint:
    transformer: TransformerConfig
    pretraining: PretrainingConfig
    architecture: Literal["transformer", "mlp", "entities"]
    mlp: MLPConfig
    entities: EntityConfig
    order: Literal["slots", "confidence", "margin"] | None
    slots_per_pass: int
    entropy_bound: float | None

class _SPINIDQLFields(_IDQLFields, _JointFields, total=False): ...

class SPINIDQLConfig(_Joint, IDQLConfig):
    actor_encoder_factory: JointEncoderFactory
    def __init__(self, **fields: Unpack[_SPINIDQLFields]) -> None: ...

class SPINIDQL(IDQL):
    config_class: type[SPINIDQLConfig]
    @property
    def config(self) -> SPINIDQLConfig: ...
    def __init__(
        self,
        config: SPINIDQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINIDQLFields],
    ) -> None: ...

class _SAINTIDQLFields(_IDQLFields, _SAINTFields, total=False): ...

class SAINTIDQLConfig(_SAINT, IDQLConfig):
    actor_encoder_factory: SAINTEncoderFactory
    def __init__(self, **fields: Unpack[_SAINTIDQLFields]) -> None: ...

class SAINTIDQL(IDQL):
    config_class: type[SAINTIDQLConfig]
    @property
    def config(self) -> SAINTIDQLConfig: ...
    def __init__(
        self,
        config: SAINTIDQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SAINTIDQLFields],
    ) -> None: ...

class _FactoredIDQLFields(_IDQLFields, _VectorFields, total=False): ...

class FactoredIDQLConfig(_Vector, IDQLConfig):
    actor_encoder_factory: EncoderFactory
    def __init__(self, **fields: Unpack[_FactoredIDQLFields]) -> None: ...

class FactoredIDQL(IDQL):
    config_class: type[FactoredIDQLConfig]
    @property
    def config(self) -> FactoredIDQLConfig: ...
    def __init__(
        self,
        config: FactoredIDQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_FactoredIDQLFields],
    ) -> None: ...

class _AutoregressiveIDQLFields(_IDQLFields, _AutoregressiveFields, total=False): ...

class AutoregressiveIDQLConfig(_Autoregressive, IDQLConfig):
    actor_encoder_factory: AutoregressiveEncoderFactory
    def __init__(self, **fields: Unpack[_AutoregressiveIDQLFields]) -> None: ...

class AutoregressiveIDQL(IDQL):
    config_class: type[AutoregressiveIDQLConfig]
    @property
    def config(self) -> AutoregressiveIDQLConfig: ...
    def __init__(
        self,
        config: AutoregressiveIDQLConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_AutoregressiveIDQLFields],
    ) -> None: ...

class _AWACFields(TypedDict, total=False):
    batch_size: int
    gamma: float
    observation_scaler: ObservationScaler | None
    action_scaler: ActionScaler | None
    reward_scaler: RewardScaler | None
    compile_graph: bool | Literal["auto"]
    nvec: list[int] | None
    layout: ActionLayout | None
    rules: list[Any] | None
    n_steps: int
    trajectory_weights: TrajectoryWeights | None
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_warmup: float
    precision: Literal["float32", "bfloat16", "tf32", "auto"]
    actor_learning_rate: float
    actor_optim_factory: OptimizerFactory
    imitation_batch_size: int | None
    ema_decay: float
    tau: float
    n_critics: int
    decomposition: Literal["sum", "mean"]
    monte_carlo_share: float
    critic_learning_rate: float
    critic_optim_factory: OptimizerFactory
    critic_encoder_factory: EncoderFactory
    weight_ess: float | None
    value_encoder_factory: EncoderFactory
    lam: float
    max_weight: float
    n_action_samples: int

class _SPINAWACFields(_AWACFields, _SPINFields, total=False): ...

class SPINAWACConfig(_SPIN, AWACConfig):
    actor_encoder_factory: SPINEncoderFactory
    def __init__(self, **fields: Unpack[_SPINAWACFields]) -> None: ...

class SPINAWAC(AWAC):
    config_class: type[SPINAWACConfig]
    @property
    def config(self) -> SPINAWACConfig: ...
    def __init__(
        self,
        config: SPINAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINAWACFields],
    ) -> None: ...

class _SAINTAWACFields(_AWACFields, _SAINTFields, total=False): ...

class SAINTAWACConfig(_SAINT, AWACConfig):
    actor_encoder_factory: SAINTEncoderFactory
    def __init__(self, **fields: Unpack[_SAINTAWACFields]) -> None: ...

class SAINTAWAC(AWAC):
    config_class: type[SAINTAWACConfig]
    @property
    def config(self) -> SAINTAWACConfig: ...
    def __init__(
        self,
        config: SAINTAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SAINTAWACFields],
    ) -> None: ...

class _FactoredAWACFields(_AWACFields, _VectorFields, total=False): ...

class FactoredAWACConfig(_Vector, AWACConfig):
    actor_encoder_factory: EncoderFactory
    def __init__(self, **fields: Unpack[_FactoredAWACFields]) -> None: ...

class FactoredAWAC(AWAC):
    config_class: type[FactoredAWACConfig]
    @property
    def config(self) -> FactoredAWACConfig: ...
    def __init__(
        self,
        config: FactoredAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_FactoredAWACFields],
    ) -> None: ...

class _AutoregressiveAWACFields(_AWACFields, _AutoregressiveFields, total=False): ...

class AutoregressiveAWACConfig(_Autoregressive, AWACConfig):
    actor_encoder_factory: AutoregressiveEncoderFactory
    def __init__(self, **fields: Unpack[_AutoregressiveAWACFields]) -> None: ...

class AutoregressiveAWAC(AWAC):
    config_class: type[AutoregressiveAWACConfig]
    @property
    def config(self) -> AutoregressiveAWACConfig: ...
    def __init__(
        self,
        config: AutoregressiveAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_AutoregressiveAWACFields],
    ) -> None: ...

class _SPINDistillAWACFields(_AWACFields, _SPINDistillFields, total=False): ...

class SPINDistillAWACConfig(_SPINDistill, AWACConfig):
    actor_encoder_factory: SPINDistillEncoderFactory
    def __init__(self, **fields: Unpack[_SPINDistillAWACFields]) -> None: ...

class SPINDistillAWAC(AWAC):
    config_class: type[SPINDistillAWACConfig]
    @property
    def config(self) -> SPINDistillAWACConfig: ...
    def __init__(
        self,
        config: SPINDistillAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINDistillAWACFields],
    ) -> None: ...

class _RePreMAWACFields(_AWACFields, _RePreMFields, total=False): ...

class RePreMAWACConfig(_RePreM, AWACConfig):
    actor_encoder_factory: RePreMEncoderFactory
    def __init__(self, **fields: Unpack[_RePreMAWACFields]) -> None: ...

class RePreMAWAC(AWAC):
    config_class: type[RePreMAWACConfig]
    @property
    def config(self) -> RePreMAWACConfig: ...
    def __init__(
        self,
        config: RePreMAWACConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_RePreMAWACFields],
    ) -> None: ...

class _BCQFields(TypedDict, total=False):
    batch_size: int
    gamma: float
    observation_scaler: ObservationScaler | None
    action_scaler: ActionScaler | None
    reward_scaler: RewardScaler | None
    compile_graph: bool | Literal["auto"]
    nvec: list[int] | None
    layout: ActionLayout | None
    rules: list[Any] | None
    n_steps: int
    trajectory_weights: TrajectoryWeights | None
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_warmup: float
    precision: Literal["float32", "bfloat16", "tf32", "auto"]
    actor_learning_rate: float
    actor_optim_factory: OptimizerFactory
    imitation_batch_size: int | None
    ema_decay: float
    tau: float
    n_critics: int
    decomposition: Literal["sum", "mean"]
    monte_carlo_share: float
    critic_learning_rate: float
    critic_optim_factory: OptimizerFactory
    critic_encoder_factory: EncoderFactory
    weight_ess: float | None
    action_flexibility: float
    n_action_samples: int

class _SPINBCQFields(_BCQFields, _SPINFields, total=False): ...

class SPINBCQConfig(_SPIN, BCQConfig):
    actor_encoder_factory: SPINEncoderFactory
    def __init__(self, **fields: Unpack[_SPINBCQFields]) -> None: ...

class SPINBCQ(BCQ):
    config_class: type[SPINBCQConfig]
    @property
    def config(self) -> SPINBCQConfig: ...
    def __init__(
        self,
        config: SPINBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINBCQFields],
    ) -> None: ...

class _SAINTBCQFields(_BCQFields, _SAINTFields, total=False): ...

class SAINTBCQConfig(_SAINT, BCQConfig):
    actor_encoder_factory: SAINTEncoderFactory
    def __init__(self, **fields: Unpack[_SAINTBCQFields]) -> None: ...

class SAINTBCQ(BCQ):
    config_class: type[SAINTBCQConfig]
    @property
    def config(self) -> SAINTBCQConfig: ...
    def __init__(
        self,
        config: SAINTBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SAINTBCQFields],
    ) -> None: ...

class _FactoredBCQFields(_BCQFields, _VectorFields, total=False): ...

class FactoredBCQConfig(_Vector, BCQConfig):
    actor_encoder_factory: EncoderFactory
    def __init__(self, **fields: Unpack[_FactoredBCQFields]) -> None: ...

class FactoredBCQ(BCQ):
    config_class: type[FactoredBCQConfig]
    @property
    def config(self) -> FactoredBCQConfig: ...
    def __init__(
        self,
        config: FactoredBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_FactoredBCQFields],
    ) -> None: ...

class _AutoregressiveBCQFields(_BCQFields, _AutoregressiveFields, total=False): ...

class AutoregressiveBCQConfig(_Autoregressive, BCQConfig):
    actor_encoder_factory: AutoregressiveEncoderFactory
    def __init__(self, **fields: Unpack[_AutoregressiveBCQFields]) -> None: ...

class AutoregressiveBCQ(BCQ):
    config_class: type[AutoregressiveBCQConfig]
    @property
    def config(self) -> AutoregressiveBCQConfig: ...
    def __init__(
        self,
        config: AutoregressiveBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_AutoregressiveBCQFields],
    ) -> None: ...

class _SPINDistillBCQFields(_BCQFields, _SPINDistillFields, total=False): ...

class SPINDistillBCQConfig(_SPINDistill, BCQConfig):
    actor_encoder_factory: SPINDistillEncoderFactory
    def __init__(self, **fields: Unpack[_SPINDistillBCQFields]) -> None: ...

class SPINDistillBCQ(BCQ):
    config_class: type[SPINDistillBCQConfig]
    @property
    def config(self) -> SPINDistillBCQConfig: ...
    def __init__(
        self,
        config: SPINDistillBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINDistillBCQFields],
    ) -> None: ...

class _RePreMBCQFields(_BCQFields, _RePreMFields, total=False): ...

class RePreMBCQConfig(_RePreM, BCQConfig):
    actor_encoder_factory: RePreMEncoderFactory
    def __init__(self, **fields: Unpack[_RePreMBCQFields]) -> None: ...

class RePreMBCQ(BCQ):
    config_class: type[RePreMBCQConfig]
    @property
    def config(self) -> RePreMBCQConfig: ...
    def __init__(
        self,
        config: RePreMBCQConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_RePreMBCQFields],
    ) -> None: ...

class _BCFields(TypedDict, total=False):
    batch_size: int
    gamma: float
    observation_scaler: ObservationScaler | None
    action_scaler: ActionScaler | None
    reward_scaler: RewardScaler | None
    compile_graph: bool | Literal["auto"]
    nvec: list[int] | None
    layout: ActionLayout | None
    rules: list[Any] | None
    n_steps: int
    trajectory_weights: TrajectoryWeights | None
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_warmup: float
    precision: Literal["float32", "bfloat16", "tf32", "auto"]
    actor_learning_rate: float
    actor_optim_factory: OptimizerFactory
    imitation_batch_size: int | None
    ema_decay: float

class _SPINBCFields(_BCFields, _SPINFields, total=False): ...

class SPINBCConfig(_SPIN, BCConfig):
    actor_encoder_factory: SPINEncoderFactory
    def __init__(self, **fields: Unpack[_SPINBCFields]) -> None: ...

class SPINBC(BC):
    config_class: type[SPINBCConfig]
    @property
    def config(self) -> SPINBCConfig: ...
    def __init__(
        self,
        config: SPINBCConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SPINBCFields],
    ) -> None: ...

class _SAINTBCFields(_BCFields, _SAINTFields, total=False): ...

class SAINTBCConfig(_SAINT, BCConfig):
    actor_encoder_factory: SAINTEncoderFactory
    def __init__(self, **fields: Unpack[_SAINTBCFields]) -> None: ...

class SAINTBC(BC):
    config_class: type[SAINTBCConfig]
    @property
    def config(self) -> SAINTBCConfig: ...
    def __init__(
        self,
        config: SAINTBCConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_SAINTBCFields],
    ) -> None: ...

class _FactoredBCFields(_BCFields, _VectorFields, total=False): ...

class FactoredBCConfig(_Vector, BCConfig):
    actor_encoder_factory: EncoderFactory
    def __init__(self, **fields: Unpack[_FactoredBCFields]) -> None: ...

class FactoredBC(BC):
    config_class: type[FactoredBCConfig]
    @property
    def config(self) -> FactoredBCConfig: ...
    def __init__(
        self,
        config: FactoredBCConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_FactoredBCFields],
    ) -> None: ...

class _AutoregressiveBCFields(_BCFields, _AutoregressiveFields, total=False): ...

class AutoregressiveBCConfig(_Autoregressive, BCConfig):
    actor_encoder_factory: AutoregressiveEncoderFactory
    def __init__(self, **fields: Unpack[_AutoregressiveBCFields]) -> None: ...

class AutoregressiveBC(BC):
    config_class: type[AutoregressiveBCConfig]
    @property
    def config(self) -> AutoregressiveBCConfig: ...
    def __init__(
        self,
        config: AutoregressiveBCConfig | None = ...,
        device: DeviceArg = ...,
        enable_ddp: bool = ...,
        asm: ActionStructureModel | str | Path | None = ...,
        recipe: str = ...,
        **fields: Unpack[_AutoregressiveBCFields],
    ) -> None: ...

def factored_encoder() -> VectorEncoderFactory: ...
def factored_encoder_of_bcq() -> VectorEncoderFactory: ...
