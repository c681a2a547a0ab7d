"""Configs: the fields that all algorithms share, and those of a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, cast

from d3rlpy.base import DeviceArg, LearnableConfig
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import make_optimizer_field
from dataclasses_json import config as json_field
from typing_extensions import TypeVar

from spin_d3rlpy.asm.rule_files import as_named_rule, rule_of
from spin_d3rlpy.asm.rules import NamedRule
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.errors import require_fields, shown
from spin_d3rlpy.fast.precision import Precision
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import ImageEncoderFactory
from spin_d3rlpy.policies.factories import SPIN, PolicyFactory, make_policy_field
from spin_d3rlpy.training.graphs import CompileGraph
from spin_d3rlpy.training.schedules import ScheduleName
from spin_envs import ActionLayout, FlatActions, ObservationLayout

ACTING_SCALERS = ("observation_scaler",)  # config fields that acting needs fitted
SCALERS = (*ACTING_SCALERS, "reward_scaler")  # that updates and files need fitted


def encoder_field(default_factory: Callable[[], EncoderFactory]) -> Any:
    """Returns a config field for an encoder factory with another default than d3rlpy's."""
    template: Any = make_encoder_field()
    return dataclasses.field(default_factory=default_factory, metadata=template.metadata)


def kept_field(kept: type[Any]) -> Any:
    """Returns a config field for an object of a class with `to_dict` and `from_dict`, or None."""
    encoding = json_field(
        encoder=lambda value: None if value is None else value.to_dict(),
        decoder=lambda content: None if content is None else kept.from_dict(content),
    )
    return dataclasses.field(default=None, metadata=encoding)


def rules_field() -> Any:
    """Returns a config field for rules, None if there is nothing to say of them."""
    encoding = json_field(
        encoder=lambda rules: None if rules is None else [rule.to_dict() for rule in rules],
        decoder=lambda content: None if content is None else [as_named_rule(r) for r in content],
    )
    return dataclasses.field(default=None, metadata=encoding)


@dataclasses.dataclass()
class MultiDiscreteConfig(LearnableConfig):
    """Fields that every algorithm's config has.

    Args:
        batch_size: rows of a mini-batch.
        gamma: discount factor of a step.
        observation_scaler: d3rlpy's scaler of observations, fitted to the dataset; None for none.
        action_scaler: d3rlpy's, for continuous actions: not used here, leave it None.
        reward_scaler: d3rlpy's scaler of rewards, fitted to the dataset; None for none.
        nvec: number of choices of each slot. Filled from the dataset or environment when
            the model is built, and saved with it.
        layout: what slots and choices are (see `spin_envs.ActionLayout`). Filled likewise, if the
            dataset or environment knows; `ActionLayout()` uses nothing of what they know.
        observation_layout: where images and numbers lie in observations (see
            `spin_envs.ObservationLayout`); None without images. Filled likewise.
        flat_actions: how choices become what the environment takes (see `spin_envs.FlatActions`);
            None where both are the same. Filled likewise.
        image_encoder_factory: of the encoders of images, of shape `(C, H, W)`: any of d3rlpy's, or
            the default, `spin_d3rlpy.images.ImageEncoderFactory`, a small one for images of any
            size. Each network has its own encoder, which is trained and frozen with it.
        history: how many of the last observations a state is made of, see
            `spin_d3rlpy.histories`. A dataset with a history brings its own.
        history_actions: whether the actions between them are part of it.
        rules: what every action keeps, greedy and sampled, see `spin_d3rlpy.asm.rules`: named
            rules, or functions of a module that Python can import, of partial actions or also of
            the states that these are in. All of them hold, and files keep them. None takes
            those of the dataset, if its actions are a teacher's (`relabel`); `[]` is none.
        n_steps: gradient steps of `fit` when it is not told.
        trajectory_weights: how often each trajectory is drawn for imitation: by the policy, and by
            the stages that it learns first; None draws all alike.
        lr_schedule: of all learning rates, over the steps of `fit`: `"constant"`, or `"linear"` or
            `"cosine"` decay to 0.
        lr_warmup: share of the steps in which learning rates rise from 0 first.
        precision: number format of updates, see `spin_d3rlpy.fast.precision.autocast`. Acting is
            always in float32.
        compile_graph: on a GPU, the whole update (in `fit` drawing the batch, too, and SPIN's
            pre-training) is recorded as a CUDA graph in its fourth step and replayed from then on.
            Results are the same; see `spin_d3rlpy.training.graphs` for when it is recorded again.
            `"auto"` (default): where it can be, and the log says why where it cannot; True: an
            update that cannot be recorded is an error; False: never. It has no effect on a CPU,
            with `enable_ddp`, where observations or cached features are in host memory, where
            updates choose actions by `rules`, or by `clock="ops"`, which counts operations one by
            one.
    """

    nvec: list[int] | None = None
    layout: ActionLayout | None = kept_field(ActionLayout)
    observation_layout: ObservationLayout | None = kept_field(ObservationLayout)
    flat_actions: FlatActions | None = kept_field(FlatActions)
    image_encoder_factory: EncoderFactory = encoder_field(ImageEncoderFactory)
    history: int = 1
    history_actions: bool = False
    rules: list[Any] | None = rules_field()
    n_steps: int = 1_000_000
    trajectory_weights: TrajectoryWeights | None = dataclasses.field(
        default_factory=TrajectoryWeights
    )
    lr_schedule: ScheduleName = "constant"
    lr_warmup: float = 0.0
    precision: Precision = "float32"
    compile_graph: CompileGraph = "auto"  # type: ignore[assignment]

    type_name: ClassVar[str]
    algo_class: ClassVar[type[Any]]  # the `MultiDiscreteAlgo` registered with it

    def __post_init__(self) -> None:
        self.trajectory_weights = self.trajectory_weights or TrajectoryWeights()
        if self.rules is not None:
            if not isinstance(self.rules, list | tuple):
                raise ValueError(f"Expected rules as a list, got {self.rules!r}.")
            self.rules = [as_named_rule(rule) for rule in self.rules]
        check_fields(self)
        require_fields(
            self,
            history_actions=(
                self.history > 1 or not self.history_actions,
                "False without a history of at least 2",
            ),
        )

    @property
    def rule(self) -> NamedRule | None:
        """All of `rules` as one; None if there are none."""
        return rule_of(self.rules)

    @property
    def imitation_weights(self) -> TrajectoryWeights:
        """`trajectory_weights`, those that draw all alike if None."""
        return self.trajectory_weights or TrajectoryWeights()

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> Any:
        """Returns the algorithm, a `MultiDiscreteAlgo`, on `device`."""
        return self.algo_class(self, device, enable_ddp)

    @classmethod
    def get_type(cls) -> str:
        return cls.type_name


TPolicy = TypeVar("TPolicy", bound=PolicyFactory, default=Any)


@dataclasses.dataclass()
class PolicyConfig(MultiDiscreteConfig, Generic[TPolicy]):
    """Fields of objectives that train a policy.

    Args:
        policy: its kind, sizes and first stages: `SPIN()`, `SAINT()`, `Factored()`, another one of
            `spin_d3rlpy.policies.factories` or of another package.
        actor_learning_rate: of the policy's optimizer, before `lr_schedule`.
        actor_optim_factory: d3rlpy's factory of the policy's optimizer.
        imitation_batch_size: rows of a separate mini-batch for the policy; None uses the critics'.
        ema_decay: if above 0, an exponential moving average of the policy's weights with this decay
            acts, is saved and exported.
    """

    policy: TPolicy = cast(TPolicy, make_policy_field(SPIN))  # noqa: RUF009
    actor_learning_rate: float = 3e-4
    actor_optim_factory: OptimizerFactory = make_optimizer_field()
    imitation_batch_size: int | None = None
    ema_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.policy, PolicyFactory):
            raise ValueError(
                "Expected policy to be one of this package's (SPIN(), Factored(), ...) or another "
                f"PolicyFactory, got {shown(self.policy)}."
            )

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> Any:
        """Returns the algorithm on `device`: the named one of this objective and this policy."""
        return self.algo_class.of_policy(self.policy)(self, device, enable_ddp)
