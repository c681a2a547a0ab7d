"""Algorithms that train a policy: first stages, network and acting."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import torch
from d3rlpy.base import DeviceArg
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.logging import LOG
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.types import GymEnv, NDArray, Observation, Shape

from spin_d3rlpy.algos.base import Arguments, MultiDiscreteAlgo
from spin_d3rlpy.algos.config import PolicyConfig
from spin_d3rlpy.algos.fit import create_budget, create_run
from spin_d3rlpy.algos.impl import PolicyImpl
from spin_d3rlpy.algos.options import StageOptions
from spin_d3rlpy.algos.recipes import recipe_fields, recipe_policy
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm import ActionStructureModel, load_asm, save_asm
from spin_d3rlpy.asm.sampling import log_likelihood
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.action_spaces import flat_actions_of, with_flat_actions
from spin_d3rlpy.data.buffer.batches import BatchSource
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.data.observation_spaces import shown_images, with_flat_observations
from spin_d3rlpy.data.scalers import resize_scaler, scaler_from_dict, scaler_to_dict
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.fast.transformer import state_of
from spin_d3rlpy.images import RowSize, n_numbers
from spin_d3rlpy.nvec import nvec_from_space, require_same_nvec
from spin_d3rlpy.policies import SPIN, Policy, PolicyFactory
from spin_d3rlpy.policies.factories import ASMPolicyFactory
from spin_d3rlpy.policies.feature_cache import (
    CachedFeatures,
    NotWorthwhileError,
    compute_features,
)
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.stages import ASM_FILE, Stage, StageContext
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.loop import Row, Run

TConfig = TypeVar("TConfig", bound=PolicyConfig[Any])
TImpl = TypeVar("TImpl", bound=PolicyImpl)


@dataclasses.dataclass()
class PolicyArguments(Arguments):
    """What the constructor of an objective with a policy takes in addition to its config's fields.

    Args:
        asm: pre-trained Action Structure Model or its file, for policies made from one; without it,
            `fit` pre-trains one.
    """

    asm: ActionStructureModel | str | Path | None = None


class PolicyAlgo(MultiDiscreteAlgo[TImpl, TConfig]):
    """An objective that trains a policy, which is its config's field `policy`.

    A named algorithm is an objective with one kind of policy:

        class SPINIQL(IQL[SPIN], policy=SPIN):
            "SPIN with implicit Q-learning."

    Arguments are those of `MultiDiscreteAlgo`, and:

    Args:
        asm: see `PolicyArguments`.

    Raises:
        ValueError: the policy is of another kind than this class's.
        TypeError: a field of the policy among the objective's.
    """

    # Networks that acting needs.
    _acts_by: frozenset[str] = frozenset({"policy", "average_policy"})
    default_policy: Callable[[], PolicyFactory] = SPIN
    _kind: type[Any] = PolicyFactory  # of the policies that this class takes
    _named: dict[type[PolicyFactory], type[PolicyAlgo[Any, Any]]]

    def __init_subclass__(
        cls,
        name: str | None = None,
        policy: Callable[[], PolicyFactory] | None = None,
        **kwargs: Any,
    ) -> None:
        """Registers an objective by its name, and its algorithm with one kind of policy."""
        super().__init_subclass__(name=name, **kwargs)
        if name is not None:
            cls._named = {}
        if policy is not None:
            cls.default_policy = staticmethod(policy)
            cls._kind = type(policy())
            cls._named.setdefault(cls._kind, cls)

    def __init__(
        self,
        config: TConfig | None = None,
        device: DeviceArg = False,
        enable_ddp: bool = False,
        recipe: str = "published",
        asm: ActionStructureModel | str | Path | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(config, device, enable_ddp, recipe, **fields)
        self._asm: ActionStructureModel | None = None
        self._held_out: DeviceReplayBuffer | None = None  # see `hold_out`
        self._show_progress = True
        self._budget_of_run = Budget()
        if not isinstance(self._factory, self._kind):
            raise ValueError(
                f"{type(self).__name__} needs policy={self._kind.__name__}(...), got "
                f"{self._factory!r}."
            )
        if asm is not None:
            self.set_asm(asm)

    @classmethod
    def of_policy(cls, policy: PolicyFactory) -> type[PolicyAlgo[Any, Any]]:
        """Returns the named algorithm of this objective and a policy; without one, the objective's.

        Files hold the objective and the policy, not the class.
        """
        return cls._named.get(type(policy), cls)

    @classmethod
    def _fields_of_recipe(cls, recipe: str, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the config's fields by a recipe.

        Those that are given win; a policy that is given is taken as it is.

        Raises:
            TypeError: a field of the policy among them.
            ValueError: there is no such recipe.
        """
        policy = given.get("policy")
        if policy is None:
            policy = recipe_policy(recipe, cls.config_class, cls.default_policy())
        if isinstance(policy, PolicyFactory):
            known = {field.name for field in dataclasses.fields(cls.config_class)}
            of_policy = {field.name for field in dataclasses.fields(cast(Any, policy))}
            for name in sorted((given.keys() - known) & of_policy):
                raise TypeError(
                    f"{name} is a field of the policy: pass "
                    f"policy={type(policy).__name__}({name}=...) instead of {name}=."
                )
            fields = recipe_fields(recipe, cls.config_class, policy)
        else:
            fields = {}  # the config says what is expected
        return fields | given | {"policy": policy}

    @property
    def _factory(self) -> PolicyFactory:
        policy: PolicyFactory = self._config.policy
        return policy

    @property
    def policy(self) -> Policy:
        """The policy network; a RuntimeError if it is not built."""
        return self.require_built().policy

    @property
    def _imitation_rows(self) -> int | None:
        rows = super()._imitation_rows
        return rows and self.policy.rows_per_update(rows)

    def create_impl(self, observation_shape: Shape, action_size: int) -> None:
        """Builds the networks; the arguments are those of `MultiDiscreteAlgo.create_impl`.

        Raises:
            NvecMismatchError: the ASM was pre-trained on observations of another length.
        """
        if self._asm is not None:
            self._adopt_encoder(self._asm, cast_flat_shape(observation_shape)[0])
        layout = self._config.layout
        if layout is not None and self._asm is None:
            self._config.policy = self._factory.with_layout(layout)
        super().create_impl(observation_shape, action_size)
        scaler, policy = self._config.observation_scaler, self.policy
        if isinstance(policy, JointPolicy) and scaler is not None and scaler.built:
            policy.asm.observation_scaler = scaler_to_dict(scaler)  # a loaded policy's model
        self._load_asm()

    def _adopt_encoder(self, asm: ActionStructureModel, size: int) -> None:
        """Adopts what the ASM's images are encoded by; refuses one of other observations."""
        own, config = asm.observation_size, self._config
        if own != size:
            raise NvecMismatchError(
                f"The ASM was pre-trained on observations of length {own}, not {size}."
            )
        images = own.layout if isinstance(own, RowSize) else None
        if images != config.observation_layout:
            raise NvecMismatchError(
                f"The ASM was pre-trained on {shown_images(images)}, not on "
                f"{shown_images(config.observation_layout)}."
            )
        if isinstance(own, RowSize):
            config.image_encoder_factory = own.factory

    def _load_asm(self) -> None:
        if self._asm is not None and self._impl is not None:
            cast(Any, self.policy).load_asm(self._asm)
            self._impl.sync_average()

    def create_policy(self, observation_shape: Shape) -> Policy:
        """Returns a new policy, as the config's `policy` describes it."""
        size = cast_flat_shape(observation_shape)[0]
        return self._factory.create_policy(size, self._nvec).to(self._device)

    def create_actor_optim(self, policy: Policy) -> OptimizerWrapper | None:
        """Returns the policy's optimizer.

        Raises:
            ValueError: nothing of the policy is trained.
        """
        if not policy.trainable_modules():
            raise ValueError(
                f"{type(self).__name__} trains its policy, and nothing of a "
                f"{type(policy).__name__} is trained. Expected another policy, or IDQL."
            )
        config, modules = self._config, policy.trainable_modules()
        return self.create_optim(config.actor_optim_factory, modules, config.actor_learning_rate)

    @property
    def is_pretrained(self) -> bool:
        """Whether the policy's first stages are done (also after loading a policy)."""
        return self._impl is not None and self.policy.is_pretrained

    @takes(StageOptions)
    def pretrain(self, *arguments: Any, **options: Any) -> list[Row]:
        """Runs the policy's first stage alone, e.g. an Action Structure Model's pre-training.

        The arguments are the fields of `spin_d3rlpy.algos.options.StageOptions`.

        Returns:
            One row per epoch; for the metrics see `spin_d3rlpy.policies.stages`.

        Raises:
            ValueError: the policy has no first stage, or `seconds` and `clock` do not fit.
        """
        return self._train_stage(0, StageOptions(*arguments, **options))

    @takes(StageOptions)
    def distill(self, *arguments: Any, **options: Any) -> list[Row]:
        """Trains the student of SPIN-Distill; arguments are those of `pretrain`.

        Raises:
            ValueError: the policy has no second stage.
            RuntimeError: there is no ASM yet.
        """
        return self._train_stage(1, StageOptions(*arguments, **options))

    def _train_stage(self, number: int, options: StageOptions) -> list[Row]:
        budget = create_budget(self, options)
        if budget is not options.seconds:  # a user's own may be for more than this stage
            budget.for_one_stage = True
        stages = self._factory.first_stages()
        if number >= len(stages):
            names = ", ".join(stage.name for stage in stages) or "none"
            raise ValueError(
                f"Expected a policy with more first stages than {type(self).__name__}'s ({names})."
            )
        with budget.counting():
            buffer = self._as_buffer(options.dataset)
            self._build_with_buffer(buffer, budget.seconds)
            training = self.hold_out(buffer)
        run = create_run(self, options, budget)
        return self._train_on(stages[number], self.stage_context(training, run))

    def _train_on(self, stage: Stage, context: StageContext) -> list[Row]:
        """Runs a stage and adopts what it learned."""
        result = stage.train(context)
        if result.asm is not None:
            self.set_asm(result.asm)
            checkpoints = context.run.checkpoints
            if checkpoints is not None and checkpoints.writes:
                save_asm(result.asm, checkpoints.folder / ASM_FILE)
        self.require_built().sync_average()
        return result.rows

    def stage_context(self, buffer: DeviceReplayBuffer, run: Run) -> StageContext:
        """Returns the inputs of this algorithm's first stages.

        Args:
            buffer: the dataset, on the algorithm's device.
            run: progress bar, checkpoints and logs.
        """
        training = buffer.for_imitation(self._config.imitation_weights)
        return StageContext(
            policy=self.policy,
            factory=self._factory,
            buffer=training,
            # Of weighted trajectories a few hold most rows, and held-out ones are not like these.
            held_out=None if training.is_weighted else self._held_out,
            device=self._device,
            run=run,
            transform=self._transform,
            scaler=scaler_to_dict(self._config.observation_scaler),
            asm=self._asm,
            observation_size=cast_flat_shape(self.require_built().observation_shape)[0],
            precision=self._config.precision,
        )

    def begin_run(self, run: Run) -> None:
        super().begin_run(run)
        self._show_progress, self._budget_of_run = run.show_progress, run.budget

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        if self.policy.is_pretrained:
            return
        for stage in self._factory.first_stages():
            context = self.stage_context(buffer, run)  # with the model of the stage before
            if not stage.is_done(context):
                self._train_on(stage, context)

    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource:
        source = super().batch_source_at(source, progress)
        if not isinstance(source, DeviceReplayBuffer) or not self._factory.cache_features:
            return source  # with features already, or never
        if self.caches_features is False:
            return source
        network = self.policy.fixed_features
        if network is None:
            return source
        # A resumed run does what the interrupted one did, whatever time is left.
        budget = self._budget_of_run if self.caches_features is None else None
        precision, bar = self._config.precision, self._show_progress
        try:
            with self._budget_of_run.fastest_threads(), self._budget_of_run.preparing():
                features = compute_features(
                    network, source.states, self._transform, precision, bar, budget
                )
        except NotWorthwhileError as error:
            LOG.info("Steps compute features themselves", reason=str(error))
            self.caches_features = False
            return source
        self.caches_features = True
        return CachedFeatures(source, features)

    def frozen_state(self) -> object:
        return state_of(p for p in self.policy.parameters() if not p.requires_grad)

    @property
    def asm(self) -> ActionStructureModel | None:
        """The Action Structure Model, if it was trained, given or loaded with the policy."""
        if self._asm is None and self._impl is not None:
            policy = self.policy
            if isinstance(policy, JointPolicy) and policy.is_pretrained:
                return policy.asm  # this policy is the model
        return self._asm

    @property
    def takes_asm(self) -> bool:
        """Whether the policy is made from an Action Structure Model."""
        return isinstance(self._factory, ASMPolicyFactory)

    def set_asm(self, asm: ActionStructureModel | str | Path) -> None:
        """Adopts a pre-trained ASM: its trunk, sizes and observation scaler.

        Raises:
            ValueError: the policy is not made from an ASM.
            NvecMismatchError: action space, sizes or observation scaling differ from the config's.
        """
        config = self._config
        factory = self._factory
        if not isinstance(factory, ASMPolicyFactory):
            raise ValueError(
                f"{type(self).__name__} does not use an ASM; only SPIN's and "
                "SPIN-Distill's policies do."
            )
        if not isinstance(asm, ActionStructureModel):
            asm = load_asm(asm)
        if config.nvec is None:
            config.nvec = list(asm.nvec)
        require_same_nvec(config.nvec, asm.nvec, type(self).__name__, "the ASM")
        self._adopt_scaling(asm)
        if factory.structure != asm.config:
            config.policy = dataclasses.replace(factory, **factory.fields_for(asm.config))
            if self._impl is not None:
                raise NvecMismatchError(
                    f"{type(self).__name__} is built with other sizes than the ASM's "
                    f"{asm.config}. Pass the ASM before building."
                )
        device = torch.empty(0, device=self._device).device  # "cpu:0" is "cpu"
        on_device = next(asm.parameters()).device == device
        self._asm = asm if on_device else copy.deepcopy(asm).to(self._device)
        self._load_asm()

    def keep_asm(self, asm: ActionStructureModel) -> None:
        """Keeps the model of a policy that has its weights already, for `asm` and `support`."""
        self._asm = asm

    def _adopt_scaling(self, asm: ActionStructureModel) -> None:
        """Adopts the ASM's observation scaler, or checks that it is the one in use."""
        scaler, encoded = self._config.observation_scaler, asm.observation_scaler
        if scaler is None or (
            not scaler.built and encoded is not None and scaler.get_type() == encoded["type"]
        ):
            self._config.observation_scaler = (
                None
                if encoded is None
                else scaler_from_dict(encoded, n_numbers(asm.observation_size))
            )
        elif not scaler.built or scaler_to_dict(scaler) != encoded:
            raise NvecMismatchError(
                "The ASM was pre-trained with different observation scaling "
                f"({encoded and encoded['type']}) than this algorithm is configured with "
                f"({scaler.get_type()}). Leave observation_scaler unset to use the ASM's."
            )

    def resized(self, env: GymEnv) -> Self:
        """Returns an algorithm with these networks for another number of slots and choices.

        Networks that score slots and choices by their features have the same weights for any
        number of them: train with 10 couriers, act with 50. Networks that only training needs,
        such as state values, are new. To train on there, pass this algorithm's `asm`, resized.

        Args:
            env: has the same features of slots, choices and context, in its `unwrapped.layout`;
                its actions need no bins.

        Raises:
            ValueError: networks depend on the number of slots or choices, or features differ.
        """
        impl, before, after = self.require_built(), self._config.layout, layout_of(env)
        if before is None or after is None or not (before.has_features and after.has_features):
            raise ValueError(
                "Expected an algorithm and an environment with a layout of the features of their "
                "slots and choices (`spin_envs.ActionLayout`)."
            )
        flat = with_flat_observations(with_flat_actions(cast(Any, env)))
        shape = flat.observation_space.shape
        assert shape is not None
        config = copy.deepcopy(self._config)
        config.nvec, config.layout = nvec_from_space(cast(Any, flat.action_space)), after
        config.flat_actions = flat_actions_of(flat)
        config.observation_scaler = resize_scaler(
            self._config.observation_scaler, before, after, shape[0]
        )
        other = type(self)(config, self._device, self._enable_ddp)
        other.build_with_env(flat)
        networks = cast(Any, other._impl).modules.get_torch_modules()
        trained = impl.modules.get_torch_modules()
        for name in self._acts_by & trained.keys():
            network = trained[name]
            try:
                networks[name].load_state_dict(network.state_dict())
            except RuntimeError as error:
                raise ValueError(
                    f"The network {name} depends on the number of slots or choices: {error}"
                ) from error
        return other

    def support(self, x: Observation, action: NDArray) -> NDArray:
        """Returns log-probabilities of each slot given the state and the other slots.

        For observations `(B, obs)` and actions `(B, N)` they are `(B, N)`; the sum is the masked
        pseudo-log-likelihood (`spin_d3rlpy.asm.sampling`).

        Raises:
            InvalidObservationError: wrong shape, or not finite.
            InvalidActionSpaceError: actions outside the action space.
            RuntimeError: there is no ASM: the policy was built without one.
        """
        observations = self.check_observations(x)
        actions = self._check_actions(action, len(observations))
        asm = self.asm
        if asm is None:
            raise RuntimeError(
                "There is no ASM: the policy was built without one. Call set_asm with a model or "
                "its file, or fit."
            )
        chosen = torch.as_tensor(actions, dtype=torch.int64, device=self._device)
        scores = log_likelihood(asm, self.network_input(observations), chosen)
        return scores.per_slot.cpu().numpy()

    def resume_from(self, checkpoints: Checkpoints) -> None:
        # The policy has its weights already; the model itself is kept for the user.
        path = checkpoints.folder / ASM_FILE
        if checkpoints.stage != "pretraining" and self._asm is None and path.exists():
            self.keep_asm(load_asm(path, self._device))
