"""d3rlpy encoder factories: what stands in `actor_encoder_factory` decides the policy.

A `PolicyFactory` makes a whole policy and names the stages that it needs first; any other d3rlpy
factory makes the encoder of a factored policy. All are serialized with the algorithm, under the
name that `register_encoder_factory` of d3rlpy knows them by. Inside stock d3rlpy algorithms those
of slot policies give an encoder with flat features `(B, N * D)`.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

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
from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from spin_d3rlpy.policies.base import Policy
from spin_d3rlpy.policies.factored import FactoredPolicy
from spin_d3rlpy.policies.features import SlotFeatures
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.slot import HeadInit, QueryFeatures, QueryInit, SlotPolicy
from spin_d3rlpy.policies.stages import Distill, PretrainASM, PretrainTrajectories, Stage
from spin_d3rlpy.policies.student import StudentFeatures
from spin_d3rlpy.policies.trajectory import TrajectoryFeatures
from spin_d3rlpy.reprem import RePreMConfig, RePreMPretrainingConfig

Architecture = Literal["transformer", "mlp"]


class SlotEncoder(Encoder):
    """Slot features as one flat vector, for algorithms that know nothing of slots."""

    def __init__(self, features: SlotFeatures) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: TorchObservation) -> torch.Tensor:
        """Maps observations `(B, obs)` to `(B, N * D)`."""
        assert isinstance(x, torch.Tensor)
        features: torch.Tensor = self.features(x)
        return features.flatten(1)


class PolicyFactory(EncoderFactory):
    """Base class of factories that make a policy. A new policy is a network and one of these.

    Attributes:
        cache_features: whether the policy's frozen features are computed once per dataset.
    """

    cache_features: bool = False

    @abstractmethod
    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        """Returns the policy network.

        Args:
            observation_size: length of an observation.
            nvec: number of choices of each sub-action.
        """

    def first_stages(self) -> Sequence[Stage]:
        """Returns what the policy learns, in this order, before an objective trains it."""
        return ()


class SlotEncoderFactory(PolicyFactory):
    """Base class of the factories of slot policies.

    Args:
        nvec: number of choices of each sub-action; algorithms of this package fill it in, stock
            d3rlpy algorithms need it given.
    """

    nvec: list[int] | None

    @abstractmethod
    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network."""

    def create(self, observation_shape: Shape) -> SlotEncoder:
        """Returns an encoder with flat features for stock d3rlpy algorithms.

        Raises:
            InvalidActionSpaceError: `nvec` is not set.
        """
        if self.nvec is None:
            raise InvalidActionSpaceError(
                f"{type(self).__name__} outside this package's algorithms needs nvec=[...], "
                "the number of choices of each sub-action."
            )
        policy = self.create_policy(cast_flat_shape(observation_shape)[0], self.nvec)
        return SlotEncoder(policy.features)


@dataclasses.dataclass()
class SAINTEncoderFactory(SlotEncoderFactory):
    """Transformer over slot queries, trained end to end (SAINT, as in the SPIN paper).

    Args:
        transformer: sizes.
        nvec: see `SlotEncoderFactory`.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network."""
        features = QueryFeatures(observation_size, len(nvec), self.transformer, frozen=False)
        return SlotPolicy(nvec, features, self.transformer)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "saint"


class ASMEncoderFactory(SlotEncoderFactory):
    """Base class of the factories of policies that are made from an Action Structure Model.

    Args:
        transformer: sizes of the ASM.
    """

    transformer: TransformerConfig

    @property
    def structure(self) -> StructureConfig:
        """Sizes of the ASM, whose type says its architecture."""
        return self.transformer

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        """Fields with which the policy is made from an ASM of these sizes.

        Raises:
            NvecMismatchError: it cannot be.
        """
        if isinstance(structure, MLPConfig):
            raise NvecMismatchError(
                f"{type(self).__name__} needs an ASM with a Transformer, got {structure}."
            )
        return {"transformer": structure}


@dataclasses.dataclass()
class _AnyArchitecture(ASMEncoderFactory):
    """Made from an ASM of either architecture; the fields are those of `SPINEncoderFactory`."""

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)
    architecture: Architecture = "transformer"
    mlp: MLPConfig = dataclasses.field(default_factory=MLPConfig)

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            raise ValueError(
                f"Expected architecture 'transformer' or 'mlp', got {self.architecture!r}."
            )

    @property
    def structure(self) -> StructureConfig:
        """Sizes of the ASM, whose type says its architecture."""
        return self.mlp if self.architecture == "mlp" else self.transformer

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        """Fields with which the policy is made from an ASM of these sizes."""
        if isinstance(structure, MLPConfig):
            return {"architecture": "mlp", "mlp": structure}
        return {"architecture": "transformer", "transformer": structure}

    def first_stages(self) -> Sequence[Stage]:
        """Returns the ASM's pre-training."""
        return (PretrainASM(),)


@dataclasses.dataclass()
class JointEncoderFactory(_AnyArchitecture):
    """The Action Structure Model itself, which acts by whole actions from the joint distribution.

    Args:
        transformer: sizes.
        nvec: not needed.
        pretraining: the first stage, the ASM's pre-training. Give it `masking="any_order"`: only
            then are choices in view of any others what the model learned.
        architecture: `"transformer"` or `"mlp"`.
        mlp: sizes if it is `"mlp"`.
    """

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Any:
        """Returns the policy, a `JointPolicy`."""
        return JointPolicy(observation_size, nvec, self.structure)

    def create(self, observation_shape: Shape) -> NoReturn:
        """Raises InvalidActionSpaceError: it has no features of observations alone."""
        raise _no_encoder(self)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_joint"


@dataclasses.dataclass()
class SPINEncoderFactory(_AnyArchitecture):
    """A pre-trained trunk, frozen, with heads that are trained (SPIN, section 4.2).

    Args:
        transformer: sizes.
        nvec: see `SlotEncoderFactory`.
        frozen_dropout: dropout inside the frozen trunk stays active in training (published).
        train_queries: True (published), False for fixed queries, or the number of gradient steps
            after which they stay as they are.
        query_init: `"random"` (published) or `"mask"`.
        head_init: `"random"` (published) or `"asm"`.
        asm_path: file written by `save_asm`; its trunk is loaded whenever the network is built.
            None, or a file that is gone (as when a saved policy is loaded elsewhere, whose
            weights follow): the trunk starts untrained, and `SPIN...` algorithms pre-train it in
            `fit` unless weights are loaded first.
        pretraining: the first stage, the ASM's pre-training.
        cache_features: once the queries no longer change (`train_queries` is False or a number of
            steps), compute the trunk's features of the whole dataset and train heads and critics
            on these alone. The trunk's dropout is off then, and features are rounded to bfloat16.
        architecture: of the ASM: `"transformer"` (published) or `"mlp"`, which is attention-free,
            with linear heads and without queries to train.
        mlp: sizes if it is `"mlp"`.
        train_trunk: train the trunk with the heads; pre-training is where it starts.

    Raises:
        ValueError: features are to be cached although queries or trunk are always trained, or
            an unknown architecture.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None
    frozen_dropout: bool = True
    train_queries: bool | int = True
    query_init: QueryInit = "random"
    head_init: HeadInit = "random"
    asm_path: str | None = None
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)
    cache_features: bool = False
    architecture: Architecture = "transformer"
    mlp: MLPConfig = dataclasses.field(default_factory=MLPConfig)
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
        """Returns the policy network, with the trunk of `asm_path` if that is given."""
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

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin"


@dataclasses.dataclass()
class SPINDistillEncoderFactory(ASMEncoderFactory):
    """An attention-free student of SPIN's frozen trunk (SPIN-Distill).

    Args:
        transformer: sizes of the teacher, an ASM.
        nvec: see `SlotEncoderFactory`.
        hidden_units: hidden layers of the student.
        query_init: the queries whose features it is taught: `"mask"`, the ASM's mask tokens, or
            `"random"`.
        head_init: `"random"` or `"asm"`.
        pretraining: the first stage, the teacher's pre-training.
        distillation: the second stage, how the student is taught.
        cache_features: compute the student's features of the whole dataset once and train heads
            and critics on these alone. They are rounded to bfloat16.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None
    hidden_units: list[int] = dataclasses.field(default_factory=lambda: [512, 512])
    query_init: QueryInit = "mask"
    head_init: HeadInit = "random"
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)
    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    cache_features: bool = True

    def first_stages(self) -> Sequence[Stage]:
        """Returns the teacher's pre-training and the student's distillation."""
        return (PretrainASM(), Distill())

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network; its student knows nothing yet."""
        features = StudentFeatures(observation_size, len(nvec), self.transformer, self.hidden_units)
        return SlotPolicy(nvec, features, self.transformer, self.head_init)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_distill"


@dataclasses.dataclass()
class RePreMEncoderFactory(SlotEncoderFactory):
    """A state encoder that was pre-trained on trajectories, frozen (RePreM).

    Args:
        sizes: of the model that it comes from, and of the heads.
        nvec: see `SlotEncoderFactory`.
        pretraining: the first stage.
        cache_features: compute the encoder's features of the whole dataset once and train heads
            and critics on these alone. They are rounded to bfloat16.
    """

    sizes: RePreMConfig = dataclasses.field(default_factory=RePreMConfig)
    nvec: list[int] | None = None
    pretraining: RePreMPretrainingConfig = dataclasses.field(
        default_factory=RePreMPretrainingConfig
    )
    cache_features: bool = False

    def first_stages(self) -> Sequence[Stage]:
        """Returns the pre-training on trajectories."""
        return (PretrainTrajectories(),)

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network; its encoder knows nothing yet."""
        heads = TransformerConfig(
            width=self.sizes.width,
            n_heads=self.sizes.n_heads,
            head_hidden=self.sizes.head_hidden,
            dropout=self.sizes.dropout,
        )
        return SlotPolicy(nvec, TrajectoryFeatures(observation_size, self.sizes), heads)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "reprem"


@dataclasses.dataclass()
class AutoregressiveEncoderFactory(PolicyFactory):
    """LSTM over slots, each choosing in view of those before it (AR-).

    Args:
        sizes: of the networks.
    """

    sizes: AutoregressiveConfig = dataclasses.field(default_factory=AutoregressiveConfig)

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> AutoregressivePolicy:
        """Returns the policy network."""
        return AutoregressivePolicy(observation_size, nvec, self.sizes)

    def create(self, observation_shape: Shape) -> NoReturn:
        """Raises InvalidActionSpaceError: it needs the slots before, which others do not have."""
        raise _no_encoder(self)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "autoregressive"


def _no_encoder(factory: PolicyFactory) -> InvalidActionSpaceError:
    return InvalidActionSpaceError(
        f"{type(factory).__name__} decides the policy of this package's algorithms "
        "(actor_encoder_factory); it encodes no observations by themselves. Use another "
        "encoder factory here."
    )


def create_policy(
    factory: EncoderFactory, observation_shape: Sequence[int], nvec: Sequence[int]
) -> Policy:
    """Returns the policy that an actor encoder factory stands for."""
    if isinstance(factory, PolicyFactory):
        return factory.create_policy(observation_shape[0], nvec)
    return FactoredPolicy(observation_shape, factory.create(observation_shape), nvec)


register_encoder_factory(AutoregressiveEncoderFactory)
register_encoder_factory(JointEncoderFactory)
register_encoder_factory(SAINTEncoderFactory)
register_encoder_factory(SPINEncoderFactory)
register_encoder_factory(SPINDistillEncoderFactory)
register_encoder_factory(RePreMEncoderFactory)
