"""Policies as the field `policy` of an objective's config holds them."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, cast

from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory, make_encoder_field
from d3rlpy.serializable_config import DynamicConfig, generate_config_registration

from spin_d3rlpy.asm.decoding import OrderName
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import ARCHITECTURES, MLPConfig, StructureConfig, TransformerConfig
from spin_d3rlpy.asm.pretraining import PretrainingConfig
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import behind_images
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from spin_d3rlpy.policies.base import FactoredPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.entities import AttendingPolicy, EntityOrderPolicy, EntityPolicy
from spin_d3rlpy.policies.features import (
    HeadInit,
    QueryFeatures,
    QueryInit,
    SlotPolicy,
    StudentFeatures,
    TrajectoryFeatures,
)
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig
from spin_d3rlpy.policies.stages import Distill, PretrainASM, PretrainTrajectories, Stage
from spin_envs import ActionLayout


def published_encoder() -> VectorEncoderFactory:
    """The factored policy's hidden layers in SPIN's published code."""
    return VectorEncoderFactory(hidden_units=[256, 256], dropout_rate=0.1)


Architecture = Literal["transformer", "mlp", "entities"]


class PolicyFactory(DynamicConfig):
    """Base class of policies as an objective's config holds them: kind, sizes, first stages.

    A new policy is a network and one of these, a dataclass: `class Linear(PolicyFactory,
    name="linear")`. d3rlpy saves its fields under this name.

    Args:
        cache_features: compute features that do not change once for the whole dataset.
    """

    cache_features: bool = False
    type_name: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        """Registers a named policy with d3rlpy, for saved files."""
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.type_name = name
            _register_policy(cls)

    @classmethod
    def get_type(cls) -> str:
        return cls.type_name

    @abstractmethod
    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        """Returns the policy network for observations of this length and `nvec`.

        Where there are images the length knows them: `spin_d3rlpy.images.behind_images` puts an
        encoder before a network's first layer.
        """

    def with_layout(self, layout: ActionLayout) -> Self:
        """Returns the policy that uses what is known of slots and choices."""
        return self

    def first_stages(self) -> Sequence[Stage]:
        """Returns the stages, in order, that precede training by an objective."""
        return ()


_register_policy, _make_field = generate_config_registration(
    PolicyFactory  # type: ignore[type-abstract]
)


def make_policy_field(default_factory: Callable[[], PolicyFactory]) -> Any:
    """Returns a config field for a policy."""
    template: Any = _make_field()
    return dataclasses.field(default_factory=default_factory, metadata=template.metadata)


@dataclasses.dataclass()
class _TakesFeatures(PolicyFactory):
    """Made from features of slots and choices, where the layout of actions has some.

    Args:
        entities: sizes of the network that scores them; None: never, it sees the observation flat.
    """

    entities: EntityConfig | None = dataclasses.field(default_factory=EntityConfig, kw_only=True)

    def with_layout(self, layout: ActionLayout) -> Self:
        if self.entities is None:
            return self
        known = layout if layout.has_features else ActionLayout()
        return dataclasses.replace(self, entities=dataclasses.replace(self.entities, layout=known))

    @property
    def entities_in_use(self) -> EntityConfig | None:
        """`entities` if there are features, else None."""
        entities = self.entities
        return entities if entities is not None and entities.layout.has_features else None


@dataclasses.dataclass()
class Factored(_TakesFeatures, name="spin_factored"):
    """Independent slots: one network of the state, without a model of how choices go together.

    Args:
        encoder_factory: d3rlpy's factory of the network; the default is SPIN's published one.
        entities: where slots have features, of the network that takes its place. None: the policy
            sees the flat observation.
    """

    encoder_factory: EncoderFactory = dataclasses.field(
        default_factory=published_encoder, metadata=cast(Any, make_encoder_field()).metadata
    )

    def with_layout(self, layout: ActionLayout) -> Self:
        return super().with_layout(layout if can_tell_slots(layout) else ActionLayout())

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        if (entities := self.entities_in_use) is not None:
            return EntityPolicy(observation_size, nvec, entities, from_asm=False)
        encoder = behind_images(observation_size, lambda size: self.encoder_factory.create((size,)))
        return FactoredPolicy((observation_size,), encoder, nvec)


@dataclasses.dataclass()
class SAINT(_TakesFeatures, name="saint"):
    """Transformer over slot queries, trained end to end (SAINT, as in the SPIN paper).

    Args:
        transformer: its sizes.
        entities: where slots have features, they take the place of state, queries and heads: slots
            and choices attend to each other, and one network scores pairs of them. None: the policy
            sees the flat observation, as it does where slots have no features.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)

    def with_layout(self, layout: ActionLayout) -> Self:
        return super().with_layout(layout if can_tell_slots(layout) else ActionLayout())

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        if (entities := self.entities_in_use) is not None:
            return AttendingPolicy(observation_size, nvec, entities, self.transformer)
        features = QueryFeatures(observation_size, len(nvec), self.transformer, frozen=False)
        return SlotPolicy(nvec, features, self.transformer)


@dataclasses.dataclass()
class ASMPolicyFactory(PolicyFactory):
    """Base class of the factories of policies made from an Action Structure Model.

    Args:
        transformer: sizes of the model, if it is a Transformer.
        pretraining: how the model is pre-trained.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    pretraining: PretrainingConfig = dataclasses.field(default_factory=PretrainingConfig)

    @property
    def structure(self) -> StructureConfig:
        """Sizes of the ASM; their type is its architecture."""
        return self.transformer

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        """Returns the fields of a policy made from an ASM of these sizes, if they fit.

        Raises:
            NvecMismatchError: sizes of another architecture.
        """
        if not isinstance(structure, TransformerConfig):
            raise NvecMismatchError(
                f"{type(self).__name__} needs an ASM with a Transformer, got {structure}."
            )
        return {"transformer": structure}

    def first_stages(self) -> Sequence[Stage]:
        return (PretrainASM(),)


@dataclasses.dataclass()
class _AnyArchitecture(ASMPolicyFactory):
    """Made from an ASM of either architecture.

    Args:
        architecture: of the ASM: `"transformer"` (published), the attention-free `"mlp"` or
            `"entities"`.
        mlp: sizes of the model, if it is an MLP.
        entities: sizes of the model, if it takes features of slots and choices.
    """

    # "entities" where the layout of actions has features, whatever is asked for.
    architecture: Architecture = "transformer"
    mlp: MLPConfig = dataclasses.field(default_factory=MLPConfig)
    entities: EntityConfig = dataclasses.field(default_factory=EntityConfig)

    def with_layout(self, layout: ActionLayout) -> Self:
        if not layout.has_features:
            return self
        entities = dataclasses.replace(self.entities, layout=layout)
        return dataclasses.replace(self, **self.fields_for(entities))

    @property
    def structure(self) -> StructureConfig:
        chosen: StructureConfig = getattr(self, self.architecture)
        return chosen

    def fields_for(self, structure: StructureConfig) -> dict[str, Any]:
        architecture = next(k for k, v in ARCHITECTURES.items() if isinstance(structure, v))
        return {"architecture": architecture, architecture: structure}


@dataclasses.dataclass()
class SPINJoint(_AnyArchitecture, name="spin_joint"):
    """The Action Structure Model itself, which acts by whole actions from the joint distribution.

    Give its `pretraining` `masking="any_order"`: only then are choices in view of any others what
    the model learned. `architecture` is `"transformer"`, `"mlp"` or `"entities"`, with sizes of the
    same name.

    Args:
        order: in which slots are chosen: `"slots"`, one after the other; `"confidence"`, the slot
            with the most likely choice first; `"margin"`, the one whose best choice leads most by
            probability, `"regret"` by log-probability. None is `"confidence"` where choices have
            features, and `"slots"` elsewhere.
        slots_per_pass: but for `"slots"`, most slots that one pass of a network of such features
            chooses, if their choices differ; with rules or masks slots are chosen one by one.
        entropy_bound: instead of these, slots are chosen together in one pass of the network as
            long as the sum of their entropies (nats), without the largest one, stays below this.
            Exported files, and policies with rules or masks, choose one a pass.
    """

    order: OrderName | None = None
    slots_per_pass: int = 8
    entropy_bound: float | None = None

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> JointPolicy:
        of_choices = self.architecture == "entities" and self.entities.layout.has_choice_features
        order: OrderName = self.order or ("confidence" if of_choices else "slots")
        return JointPolicy(
            observation_size,
            nvec,
            self.structure,
            order,
            self.entropy_bound,
            self.slots_per_pass,
        )


@dataclasses.dataclass()
class SPIN(_AnyArchitecture, name="spin"):
    """A pre-trained, frozen trunk with trained heads (SPIN, section 4.2).

    Args:
        frozen_dropout: keep dropout inside the frozen trunk active in training (published).
        train_queries: train queries together with the heads (published).
        query_init: `"random"` (published) or `"mask"`.
        head_init: `"random"` (published) or `"asm"`.
        cache_features: with fixed queries, compute the trunk's features of the whole dataset and
            train heads and critics on them, without trunk dropout and rounded to bfloat16.
        architecture: of the ASM: `"transformer"` (published); the attention-free `"mlp"`, with
            linear heads and without trained queries; or `"entities"`, of which a pair's last layers
            are trained.
        train_trunk: train the pre-trained trunk together with the heads.
    """

    frozen_dropout: bool = True
    train_queries: bool = True
    query_init: QueryInit = "random"
    head_init: HeadInit = "random"
    cache_features: bool = False
    train_trunk: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        trains_queries = self.train_queries and self.architecture == "transformer"
        if self.cache_features and (self.train_trunk or trains_queries):
            raise ValueError(
                "cache_features needs features that do not change: pass train_queries=False and "
                "no train_trunk."
            )

    def with_layout(self, layout: ActionLayout) -> Self:
        return super().with_layout(layout) if can_tell_slots(layout) else self

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> Policy:
        if self.architecture == "entities":
            return EntityPolicy(observation_size, nvec, self.entities, from_asm=True)
        features = QueryFeatures(
            observation_size,
            len(nvec),
            self.structure,
            frozen=not self.train_trunk,
            frozen_dropout=self.frozen_dropout,
            train_queries=self.train_queries,
            query_init=self.query_init,
        )
        return SlotPolicy(nvec, features, self.structure, self.head_init)


@dataclasses.dataclass()
class SPINDistill(ASMPolicyFactory, name="spin_distill"):
    """An attention-free student of SPIN's frozen trunk (SPIN-Distill).

    Args:
        transformer: sizes of the teacher, an ASM.
        hidden_units: widths of the student's hidden layers.
        query_init: the teacher's queries: `"mask"` (the ASM's mask tokens) or `"random"`.
        head_init: heads: `"random"` or `"asm"`.
        distillation: how the student is trained.
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
class RePreM(PolicyFactory, name="reprem"):
    """A frozen state encoder, pre-trained on trajectories (RePreM).

    It sees the flat observation, also where slots and choices have features: in its paper a state
    is one vector of a trajectory.

    Args:
        sizes: of the model.
        pretraining: how it is pre-trained.
    """

    sizes: RePreMConfig = dataclasses.field(default_factory=RePreMConfig)
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
class Autoregressive(_TakesFeatures, name="autoregressive"):
    """LSTM over slots, each conditioned on the previous ones (AR-).

    Args:
        sizes: of the LSTM and its embeddings.
        entities: of the network in place of the LSTM where slots and choices have features: it
            scores a slot's choices in view of those of the slots before it. None: the policy sees
            the flat observation.
    """

    sizes: AutoregressiveConfig = dataclasses.field(default_factory=AutoregressiveConfig)

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotOrderPolicy:
        if (entities := self.entities_in_use) is not None:
            return EntityOrderPolicy(observation_size, nvec, entities)
        return AutoregressivePolicy(observation_size, nvec, self.sizes)


def can_tell_slots(layout: ActionLayout) -> bool:
    """Whether a network of features can serve slots that are independent given the state.

    Without features of their own, such as the places of a page, all of them would choose alike.
    """
    return layout.has_features and layout.has_slot_features
