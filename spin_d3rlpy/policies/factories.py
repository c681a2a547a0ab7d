"""d3rlpy encoder factories: `actor_encoder_factory` chooses the policy.

A `PolicyFactory` creates a policy and names its first stages; any other d3rlpy factory creates the
encoder of a factored policy. In stock d3rlpy algorithms, slot policies' factories create an encoder
with flat features `(B, N * D)`.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, register_encoder_factory
from d3rlpy.models.torch.encoders import Encoder
from d3rlpy.types import Shape, TorchObservation

from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.files import load_asm
from spin_d3rlpy.asm.mlp import MLPConfig
from spin_d3rlpy.asm.model import StructureConfig, TransformerConfig
from spin_d3rlpy.asm.pretraining import PretrainingConfig
from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError, require_fields
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from spin_d3rlpy.policies.base import FactoredPolicy, Policy
from spin_d3rlpy.policies.features import (
    QueryFeatures,
    QueryInit,
    SlotFeatures,
    StudentFeatures,
    TrajectoryFeatures,
)
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.slot import HeadInit, SlotPolicy
from spin_d3rlpy.policies.stages import Distill, PretrainASM, PretrainTrajectories, Stage
from spin_d3rlpy.reprem import RePreMConfig, RePreMPretrainingConfig

Architecture = Literal["transformer", "mlp"]


class SlotEncoder(Encoder):
    """Slot features as one flat vector, for stock d3rlpy algorithms."""

    def __init__(self, features: SlotFeatures) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: TorchObservation) -> torch.Tensor:
        """Maps observations `(B, obs)` to `(B, N * D)`."""
        assert isinstance(x, torch.Tensor)
        features: torch.Tensor = self.features(x)
        return features.flatten(1)


class PolicyFactory(EncoderFactory):
    """Base class of factories of policies. A new policy is a network and one of these."""

    cache_features: bool = False  # whether frozen features are computed once per dataset
    type_name: ClassVar[str]

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        """Registers a named factory with d3rlpy, for saved files."""
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.type_name = name
            register_encoder_factory(cls)

    @classmethod
    def get_type(cls) -> str:
        return cls.type_name

    def create(self, observation_shape: Shape) -> Encoder:
        raise InvalidActionSpaceError(
            f"{type(self).__name__} chooses the policy of this package's algorithms "
            "(actor_encoder_factory); it cannot encode observations alone. Use another encoder "
            "factory here."
        )

    @abstractmethod
    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        """Returns the policy network for observations of this length and `nvec`."""

    def first_stages(self) -> Sequence[Stage]:
        """Returns the stages, in order, that precede training by an objective."""
        return ()


class SlotEncoderFactory(PolicyFactory):
    """Base class of slot policies' factories; only stock d3rlpy algorithms need `nvec` given."""

    nvec: list[int] | None

    @abstractmethod
    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy: ...

    def create(self, observation_shape: Shape) -> Encoder:
        """Returns an encoder with flat features for stock d3rlpy algorithms, which need `nvec`."""
        if self.nvec is None:
            raise InvalidActionSpaceError(
                f"{type(self).__name__} outside this package's algorithms needs nvec=[...], "
                "the number of choices of each sub-action."
            )
        policy = self.create_policy(cast_flat_shape(observation_shape)[0], self.nvec)
        return SlotEncoder(policy.features)


@dataclasses.dataclass()
class SAINTEncoderFactory(SlotEncoderFactory, name="saint"):
    """Transformer over slot queries, trained end to end (SAINT, as in the SPIN paper)."""

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        features = QueryFeatures(observation_size, len(nvec), self.transformer, frozen=False)
        return SlotPolicy(nvec, features, self.transformer)


@dataclasses.dataclass()
class ASMEncoderFactory(SlotEncoderFactory):
    """Base class of the factories of policies made from an Action Structure Model."""

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)

    @property
    def structure(self) -> StructureConfig:
        """Sizes of the ASM; their type is its architecture."""
        return self.transformer

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        """Returns the fields of a policy made from an ASM of these sizes, if they fit."""
        if isinstance(structure, MLPConfig):
            raise NvecMismatchError(
                f"{type(self).__name__} needs an ASM with a Transformer, got {structure}."
            )
        return {"transformer": structure}

    def first_stages(self) -> Sequence[Stage]:
        return (PretrainASM(),)


@dataclasses.dataclass()
class _AnyArchitecture(ASMEncoderFactory):
    """Made from an ASM of either architecture."""

    architecture: Architecture = "transformer"
    mlp: MLPConfig = dataclasses.field(default_factory=MLPConfig)

    def __post_init__(self) -> None:
        is_known = self.architecture in get_args(Architecture)
        require_fields(self, architecture=(is_known, "'transformer' or 'mlp'"))

    @property
    def structure(self) -> StructureConfig:
        return self.mlp if self.architecture == "mlp" else self.transformer

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        architecture = "mlp" if isinstance(structure, MLPConfig) else "transformer"
        return {"architecture": architecture, architecture: structure}


@dataclasses.dataclass()
class JointEncoderFactory(_AnyArchitecture, name="spin_joint"):
    """The Action Structure Model itself, which acts by whole actions from the joint distribution.

    Give its `pretraining` `masking="any_order"`: only then are choices in view of any others what
    the model learned. `architecture` is `"transformer"` or `"mlp"`, with sizes of the same name.
    """

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Any:
        return JointPolicy(observation_size, nvec, self.structure)

    create = PolicyFactory.create  # it has no features of observations alone


@dataclasses.dataclass()
class SPINEncoderFactory(_AnyArchitecture, name="spin"):
    """A pre-trained, frozen trunk with trained heads (SPIN, section 4.2).

    Args:
        frozen_dropout: keep dropout inside the frozen trunk active in training (published).
        train_queries: True (published), False, or the number of gradient steps after which queries
            are fixed.
        query_init: `"random"` (published) or `"mask"`.
        head_init: `"random"` (published) or `"asm"`.
        asm_path: file from `save_asm`, whose trunk is loaded when the network is built. If None or
            missing (as when a saved policy is loaded elsewhere), the trunk starts untrained, and
            `SPIN...` algorithms pre-train it in `fit` unless weights are loaded first.
        cache_features: once queries are fixed (`train_queries` False or a number of steps), compute
            the trunk's features of the whole dataset and train heads and critics on them, without
            trunk dropout and rounded to bfloat16.
        architecture: of the ASM: `"transformer"` (published) or the attention-free `"mlp"`, with
            linear heads and without trained queries.
        train_trunk: train the pre-trained trunk together with the heads.

    Raises:
        ValueError: cached features although queries or trunk are always trained, or an unknown
            architecture.
    """

    frozen_dropout: bool = True
    train_queries: bool | int = True
    query_init: QueryInit = "random"
    head_init: HeadInit = "random"
    asm_path: str | None = None
    cache_features: bool = False
    train_trunk: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_features and self.train_trunk:
            raise ValueError("cache_features needs a trunk that is not trained, or leave it out.")
        if self.cache_features and self.train_queries is True and self.architecture != "mlp":
            raise ValueError(
                "cache_features needs queries that no longer change. Pass train_queries=False, or "
                "train_queries=k to train them for the first k steps."
            )

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network, with the trunk of `asm_path` if given."""
        if self.nvec is not None:
            require_same_nvec(self.nvec, nvec, "The encoder factory", "the algorithm")
        features = QueryFeatures(
            observation_size,
            len(nvec),
            self.structure,
            frozen=not self.train_trunk,
            frozen_dropout=self.frozen_dropout,
            train_queries=self.train_queries,
            query_init=self.query_init,
        )
        policy = SlotPolicy(nvec, features, self.structure, self.head_init)
        if self.asm_path is not None:
            if Path(self.asm_path).exists():
                policy.load_asm(load_asm(self.asm_path))
            else:
                warnings.warn(
                    f"There is no ASM at {self.asm_path}: the trunk is untrained until weights "
                    "are loaded or fit pre-trains it.",
                    stacklevel=2,
                )
        return policy


@dataclasses.dataclass()
class SPINDistillEncoderFactory(ASMEncoderFactory, name="spin_distill"):
    """An attention-free student of SPIN's frozen trunk (SPIN-Distill).

    Args:
        transformer: sizes of the teacher, an ASM.
        query_init: the teacher's queries: `"mask"` (the ASM's mask tokens) or `"random"`.
        cache_features: compute the student's features of the whole dataset once, rounded to
            bfloat16, and train heads and critics on them.
    """

    hidden_units: list[int] = dataclasses.field(default_factory=lambda: [512, 512])
    query_init: QueryInit = "mask"
    head_init: HeadInit = "random"
    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    cache_features: bool = True

    def first_stages(self) -> Sequence[Stage]:
        return (PretrainASM(), Distill())

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        features = StudentFeatures(observation_size, len(nvec), self.transformer, self.hidden_units)
        return SlotPolicy(nvec, features, self.transformer, self.head_init)


@dataclasses.dataclass()
class RePreMEncoderFactory(SlotEncoderFactory, name="reprem"):
    """A frozen state encoder, pre-trained on trajectories (RePreM)."""

    sizes: RePreMConfig = dataclasses.field(default_factory=RePreMConfig)
    nvec: list[int] | None = None
    pretraining: RePreMPretrainingConfig = dataclasses.field(
        default_factory=RePreMPretrainingConfig
    )
    cache_features: bool = False

    def first_stages(self) -> Sequence[Stage]:
        return (PretrainTrajectories(),)

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        heads = TransformerConfig(
            width=self.sizes.width,
            n_heads=self.sizes.n_heads,
            head_hidden=self.sizes.head_hidden,
            dropout=self.sizes.dropout,
        )
        return SlotPolicy(nvec, TrajectoryFeatures(observation_size, self.sizes), heads)


@dataclasses.dataclass()
class AutoregressiveEncoderFactory(PolicyFactory, name="autoregressive"):
    """LSTM over slots, each conditioned on the previous ones (AR-)."""

    sizes: AutoregressiveConfig = dataclasses.field(default_factory=AutoregressiveConfig)

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> AutoregressivePolicy:
        return AutoregressivePolicy(observation_size, nvec, self.sizes)


def create_policy(
    factory: EncoderFactory, observation_shape: Sequence[int], nvec: Sequence[int]
) -> Policy:
    """Returns the policy of an actor encoder factory."""
    if isinstance(factory, PolicyFactory):
        return factory.create_policy(observation_shape[0], nvec)
    return FactoredPolicy(observation_shape, factory.create(observation_shape), nvec)
