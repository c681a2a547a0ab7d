"""Off-policy evaluation: fitted Q evaluation (FQE) of policies with MultiDiscrete actions."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import torch
from d3rlpy.base import DeviceArg
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import NDArray, Observation, Shape
from torch import nn

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.algos.critics import squared_error
from spin_d3rlpy.algos.impl import MultiDiscreteImpl, MultiDiscreteModules
from spin_d3rlpy.algos.joint_critics import JointCritic
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.evaluation.metrics import ActionMode
from spin_d3rlpy.training.averages import polyak_update


@dataclasses.dataclass()
class MultiDiscreteFQEConfig(MultiDiscreteConfig):
    r"""Fitted Q evaluation.

    .. math::

        L = \sum_e \mathbb{E} \big[ (Q_e(s, a) - r - \gamma (1 - d) \bar Q_e(s', \pi(s')))^2 \big]

    Q is a network of the state and the one-hot sub-actions: unlike a factored critic it can
    represent any interaction between them, and evaluation needs no maximum over actions.

    References:
        * Le et al., Batch Policy Learning under Constraints, 2019, algorithm 3.

    Args:
        learning_rate: of the Q functions, before `lr_schedule`.
        optim_factory: d3rlpy's factory of the optimizer.
        encoder_factory: d3rlpy's factory of the Q functions' encoders.
        n_critics: Q functions; each has its own target, values are their mean.
        tau: Polyak coefficient of the target ensemble, applied every step.
    """

    learning_rate: float = 1e-4
    optim_factory: OptimizerFactory = make_optimizer_field()
    encoder_factory: EncoderFactory = make_encoder_field()
    n_critics: int = 1
    tau: float = 0.005

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> NoReturn:
        """Raises NotImplementedError: FQE also needs the evaluated algorithm."""
        raise NotImplementedError("Use MultiDiscreteFQE(algo, config): it evaluates an algorithm.")

    @classmethod
    def get_type(cls) -> str:
        return "spin_fqe"


@dataclasses.dataclass(frozen=True)
class FQEModules(MultiDiscreteModules):
    """Networks and optimizer."""

    q_funcs: JointCritic
    targ_q_funcs: JointCritic
    optim: OptimizerWrapper


class FQEImpl(MultiDiscreteImpl):
    """The update of FQE."""

    _modules: FQEModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: FQEModules,
        config: MultiDiscreteFQEConfig,
        device: str,
        evaluated: MultiDiscreteImpl,
        mode: ActionMode,
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._tau = config.tau
        self._evaluated = evaluated
        greedy, sample = evaluated.predict_best_action, evaluated.sample_action
        self._act = sample if mode == "sample" else greedy
        hard_sync(modules.targ_q_funcs, modules.q_funcs)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        modules = self._modules
        with torch.no_grad():
            next_actions = self._act(batch.next_observations)
            next_values = modules.targ_q_funcs.q_values(
                self._layout, batch.next_observations, next_actions
            )
            y = self.bootstrap(batch, next_values)
        values = modules.q_funcs.q_values(self._layout, batch.observations, batch.actions)
        loss = squared_error(values, y)
        self.minimize(loss, modules.optim)
        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._tau)
        return {"loss": loss.detach()}

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        return self._evaluated.predict_best_action(x)

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self._evaluated.sample_action(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        return self._modules.q_funcs.q_values(self._layout, x, action).mean(0)

    @property
    def q_function(self) -> nn.ModuleList:
        return self._modules.q_funcs

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        return self._modules.optim.optim


class MultiDiscreteFQE(MultiDiscreteAlgo[FQEImpl, MultiDiscreteFQEConfig]):
    """Estimates the value of a trained policy from offline data.

    d3rlpy's `DiscreteFQE` takes single choices only. After `fit`, `predict_value` is the estimate;
    d3rlpy's `InitialStateValueEstimationEvaluator` and `SoftOPCEvaluator` summarize it.

    Args:
        algo: a built algorithm of this package.
        config: defaults if None; without `observation_scaler`, which is the algorithm's.
        device: as in d3rlpy; must be the algorithm's.
        mode: evaluate the greedy or the sampled policy.

    Raises:
        NvecMismatchError: the config has another action space, or an observation scaler.
        RuntimeError: the algorithm is not built.
    """

    config_class = MultiDiscreteFQEConfig

    def __init__(
        self,
        algo: MultiDiscreteAlgo[Any, Any],
        config: MultiDiscreteFQEConfig | None = None,
        device: DeviceArg = False,
        mode: ActionMode = "greedy",
    ) -> None:
        if algo.impl is None:
            raise RuntimeError("Train or build the algorithm before evaluating it.")
        config, own = dataclasses.replace(config or MultiDiscreteFQEConfig()), algo.config
        if config.nvec not in (None, own.nvec) or config.observation_scaler is not None:
            raise NvecMismatchError(
                "Expected a config without nvec and observation_scaler, which are the algorithm's, "
                f"got nvec={config.nvec} and {config.observation_scaler}."
            )
        config.nvec, config.observation_scaler = own.nvec, own.observation_scaler
        super().__init__(config, device)
        self._algo = algo
        self._mode: ActionMode = mode

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config = self._config
        shape, factory = cast_flat_shape(observation_shape), config.encoder_factory
        online, target = (
            JointCritic(shape, factory, self._nvec, config.n_critics).to(self._device)
            for _ in range(2)
        )
        optim = self.create_optim(
            config.optim_factory, online.named_modules(), config.learning_rate
        )
        modules = FQEModules(online, target, optim)
        evaluated = self._algo.impl
        assert evaluated is not None
        self._impl = FQEImpl(
            observation_shape, modules, config, self._device, evaluated, self._mode
        )

    def save_policy(self, fname: str) -> None:
        """Writes the evaluated policy."""
        self._algo.save_policy(fname)

    def predict(self, x: Observation) -> NDArray:
        return self._algo.predict(x)

    def sample_action(self, x: Observation) -> NDArray:
        return self._algo.sample_action(x)
