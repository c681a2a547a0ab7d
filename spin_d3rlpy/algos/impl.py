"""Parts of algorithms: configs, networks, acting, and an update without host syncs."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.base import DeviceArg, LearnableConfig
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import Modules, TorchMiniBatch, train_api
from d3rlpy.types import Shape

from spin_d3rlpy._compat import advance_schedule, step_without_schedule
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.weights import TrajectoryWeights
from spin_d3rlpy.errors import require_one_of
from spin_d3rlpy.graphs import CompileGraph, GraphedStep
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.feature_cache import policy_input
from spin_d3rlpy.precision import Precision, backward
from spin_d3rlpy.schedules import Schedule, ScheduleName, WeightAverage

Metrics = dict[str, torch.Tensor]


@dataclasses.dataclass()
class MultiDiscreteConfig(LearnableConfig):
    """Fields that every algorithm's config has.

    Args:
        nvec: number of choices of each sub-action. Filled from the dataset or environment when
            the model is built, and saved with it.
        n_steps: gradient steps of `fit` when it is not told.
        trajectory_weights: how often each trajectory is drawn for imitation: by the policy, and by
            the stages that it learns first; None draws uniformly.
        lr_schedule: of all learning rates, over the steps of `fit`: `"constant"`, or `"linear"` or
            `"cosine"` decay to 0.
        lr_warmup: share of the steps in which learning rates rise from 0 first.
        precision: number format of updates, see `spin_d3rlpy.precision.autocast`. Acting is
            always in float32.
        compile_graph: on a GPU, the whole update (in `fit` drawing the batch, too, and SPIN's
            pre-training) is recorded as a CUDA graph in its fourth step and replayed from then on.
            Results are the same; see `spin_d3rlpy.graphs` for when it is recorded again.
            `"auto"`: where it can be, and the log says why where it cannot; True: an update that
            cannot be recorded is an error; False: never. It has no effect on a CPU, with
            `enable_ddp`, or where observations or cached features are in host memory.
    """

    nvec: list[int] | None = None
    n_steps: int = 1_000_000
    trajectory_weights: TrajectoryWeights = dataclasses.field(default_factory=TrajectoryWeights)
    lr_schedule: ScheduleName = "constant"
    lr_warmup: float = 0.0
    precision: Precision = "float32"
    compile_graph: CompileGraph = "auto"  # type: ignore[assignment]

    type_name: ClassVar[str]
    algo_class: ClassVar[type[Any]]  # the `MultiDiscreteAlgo` registered with it

    def __post_init__(self) -> None:
        require_one_of("precision", self.precision, Precision)
        Schedule(self.lr_schedule, self.lr_warmup)
        self.trajectory_weights = self.trajectory_weights or TrajectoryWeights()

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> Any:
        """Returns the algorithm, a `MultiDiscreteAlgo`, on `device`."""
        return self.algo_class(self, device, enable_ddp)

    @classmethod
    def get_type(cls) -> str:
        return cls.type_name


def encoder_field(default_factory: Callable[[], EncoderFactory]) -> Any:
    """Returns a config field for an encoder factory with another default than d3rlpy's."""
    template: Any = make_encoder_field()
    return dataclasses.field(default_factory=default_factory, metadata=template.metadata)


@dataclasses.dataclass(frozen=True)
class MultiDiscreteModules(Modules):
    """Networks and optimizers; what SPIN froze stays frozen."""

    def unfreeze(self) -> None:
        super().unfreeze()
        for network in self.get_torch_modules().values():
            if isinstance(network, Policy):
                network.freeze()


class MultiDiscreteImpl(QLearningAlgoImplBase):
    """Base class of the updates, which return tensors so that no step waits for the device."""

    _config: MultiDiscreteConfig

    def __init__(
        self,
        observation_shape: Shape,
        modules: MultiDiscreteModules,
        config: MultiDiscreteConfig,
        device: str,
    ) -> None:
        assert config.nvec is not None
        layout = SlotLayout(config.nvec).to(device)
        super().__init__(observation_shape, layout.max_choices, modules, device)
        self._layout, self._config = layout, config

    @property
    def n_tokens(self) -> int:
        """Rows of matrix products when it acts on one observation."""
        return 1

    def bootstrap(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """Returns `r + gamma^n (1 - terminal) next_values` for next values `(..., B)`."""
        discount = self._config.gamma ** batch.intervals.squeeze(-1)
        not_over = 1.0 - batch.terminals.squeeze(-1)
        return batch.rewards.squeeze(-1) + discount * not_over * next_values

    def minimize(self, loss: torch.Tensor, optim: OptimizerWrapper | None) -> torch.Tensor:
        """Does one step of `optim` down the gradient of `loss`, and returns that detached."""
        assert optim is not None
        # d3rlpy's wrapper would fill gradients with zeros, and backward would add to these.
        optim.optim.zero_grad(set_to_none=True)
        backward(loss)
        step_without_schedule(optim)
        return loss.detach()

    @abstractmethod
    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """Does one gradient step and returns scalar metrics, still on the device.

        With `compile_graph` this is recorded, then replayed: `grad_step` is a number of the
        recording, and nothing may depend on values that only the device knows.
        """

    @train_api
    def update_without_sync(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """`compute_update` in training mode."""
        return self.compute_update(batch, grad_step)

    @property
    def optimizers(self) -> list[OptimizerWrapper]:
        """All optimizers."""
        return [v for v in vars(self.modules).values() if isinstance(v, OptimizerWrapper)]

    def after_update(self, grad_step: int) -> None:
        """Does what follows every step, recorded or not: d3rlpy's learning-rate schedulers move."""
        for optim in self.optimizers:
            advance_schedule(optim)

    def inner_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, float]:
        metrics = self.compute_update(batch, grad_step)
        self.after_update(grad_step)
        return {k: v.item() for k, v in metrics.items()}


class RecordedUpdate:
    """An algorithm's update as a CUDA graph, on batches that it is given or draws itself.

    There is one recording at a time: another batch size or dataset replaces it, and
    so does a change of frozen parameters, of which it holds products.
    """

    def __init__(self, algo: Any) -> None:
        self._algo = algo
        self._key: Hashable = None
        self._step: GraphedStep[Metrics] | None = None
        self._batch: TorchMiniBatch | None = None  # whose tensors the recording reads
        self._form: Hashable = None

    def on_source(self, source: DeviceReplayBuffer, batch_size: int) -> Metrics:
        """One step on a batch that the recording itself draws."""

        def step() -> Metrics:
            metrics: Metrics = self._algo._compute(source.sample_transition_batch(batch_size))
            return metrics

        return self._step_for((source, batch_size), step)()

    def on_batch(self, batch: TorchMiniBatch) -> Metrics:
        """One step on a batch, which is copied to where the recording reads it."""
        tensors = _tensors(batch)
        form = tuple((name, value.shape, value.dtype) for name, value in tensors.items())
        if form != self._form:
            copies: dict[str, Any] = {name: torch.empty_like(v) for name, v in tensors.items()}
            self._form, self._batch = form, dataclasses.replace(batch, **copies, numpy_batch=None)
        static = self._batch
        assert static is not None
        torch._foreach_copy_(list(_tensors(static).values()), list(tensors.values()))
        return self._step_for(form, lambda: self._algo._compute(static))()

    def _step_for(self, key: Hashable, step: Callable[[], Metrics]) -> GraphedStep[Metrics]:
        impl: MultiDiscreteImpl = self._algo._impl
        key = key, impl, self._algo._frozen_state()
        if self._step is None or key != self._key:
            optimizers = [optim.optim for optim in impl.optimizers]
            graph = self._algo.config.compile_graph
            self._step = GraphedStep(step, optimizers, impl.device, graph)
            self._key = key
        return self._step


def _tensors(batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
    return {name: v for name, v in vars(batch).items() if isinstance(v, torch.Tensor)}


@dataclasses.dataclass()
class PolicyConfig(MultiDiscreteConfig):
    """Fields of objectives that train a policy.

    Args:
        actor_encoder_factory: chooses the policy, its sizes and first stages: `SPINEncoderFactory`,
            `SAINTEncoderFactory`, `AutoregressiveEncoderFactory`, another `PolicyFactory`, or any
            d3rlpy encoder factory for a factored policy.
        imitation_batch_size: rows of a separate mini-batch for the policy; None uses the critics'.
        ema_decay: if above 0, an exponential moving average of the policy's weights with this decay
            acts, is saved and exported.
    """

    actor_learning_rate: float = 3e-4
    actor_optim_factory: OptimizerFactory = make_optimizer_field()
    actor_encoder_factory: EncoderFactory = make_encoder_field()
    imitation_batch_size: int | None = None
    ema_decay: float = 0.0

    def __getattr__(self, name: str) -> Any:
        """Reads the policy's fields, e.g. `config.pretraining`."""
        factory = vars(self).get("actor_encoder_factory")
        if name.startswith("_") or factory is None or name not in vars(factory):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(factory, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets the policy's fields, too."""
        factory = vars(self).get("actor_encoder_factory")
        own = {field.name for field in dataclasses.fields(self)}
        if name not in own and factory is not None and name in vars(factory):
            setattr(factory, name, value)
        else:
            super().__setattr__(name, value)

    @classmethod
    def deserialize_from_dict(cls, dict_config: dict[str, Any]) -> Any:
        """Reads a saved config; in older files policy fields are part of the objective's."""
        own = {field.name for field in dataclasses.fields(cls)}
        others = {k: v for k, v in dict_config.items() if k not in own}
        params = {k: v for k, v in dict_config.items() if k in own}
        factory = params.get("actor_encoder_factory")
        if others and isinstance(factory, Mapping):
            inner = {**factory.get("params", {}), **others}
            params["actor_encoder_factory"] = {**factory, "params": inner}
        return super().deserialize_from_dict(params)


@dataclasses.dataclass(frozen=True)
class PolicyModules(MultiDiscreteModules):
    """A policy, its optimizer (None if nothing is trained), optionally an average of weights."""

    policy: Policy
    actor_optim: OptimizerWrapper | None
    average_policy: Policy | None = dataclasses.field(default=None, kw_only=True)


class PolicyImpl(MultiDiscreteImpl):
    """Acting by a policy."""

    _modules: PolicyModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: PolicyModules,
        config: PolicyConfig,
        device: str,
    ) -> None:
        self._average: WeightAverage | None = None
        if config.ema_decay and modules.actor_optim is not None:
            self._average = WeightAverage(modules.policy, config.ema_decay)
            average: Any = self._average.average
            modules = dataclasses.replace(modules, average_policy=average)
        super().__init__(observation_shape, modules, config, device)

    @property
    def acting_policy(self) -> Policy:
        """The trained policy or the average of its weights."""
        return self._modules.average_policy or self._modules.policy

    def sync_average(self) -> None:
        """Sets the average to the policy's weights."""
        if self._average is not None:
            self._average.sync()

    def after_update(self, grad_step: int) -> None:
        super().after_update(grad_step)
        if self._average is not None:
            self._average.update(grad_step)

    @property
    def n_tokens(self) -> int:
        return self._modules.policy.n_tokens

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        return self.acting_policy.greedy(x)

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self.acting_policy.sample(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("Behavior cloning learns no values.")

    def log_prob(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Log-probability `(B,)` of the batch's actions under the trained policy."""
        return self._modules.policy.log_prob(policy_input(batch), batch.actions)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """The trained policy."""
        return self._modules.policy

    @property
    def policy_optim(self) -> torch.optim.Optimizer:
        """The policy's optimizer; a ValueError if nothing of the policy is trained."""
        if self._modules.actor_optim is None:
            raise ValueError(f"Nothing of a {type(self.policy).__name__} is trained.")
        return self._modules.actor_optim.optim
