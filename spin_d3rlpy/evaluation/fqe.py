"""Off-policy evaluation: fitted Q evaluation (FQE) of policies with MultiDiscrete actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from d3rlpy.base import DeviceArg
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import NDArray, Observation, Shape, TorchObservation
from torch import nn

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.algos.critics import squared_error
from spin_d3rlpy.algos.impl import MultiDiscreteImpl, MultiDiscreteModules, mask_rule
from spin_d3rlpy.algos.joint_critics import JointCritic
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.data.batches import next_masks_of
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.evaluation.metrics import ActionMode
from spin_d3rlpy.nvec import as_choices
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


class Acting(Protocol):
    """What acts: an algorithm's networks, or a function."""

    def predict_best_action(self, x: TorchObservation) -> torch.Tensor:
        """Actions `(B, N)` for scaled observations `(B, obs)`."""

    def sample_action(self, x: TorchObservation) -> torch.Tensor:
        """Sampled actions."""


class ActingFunction:
    """A function of unscaled observations `(B, obs)` that returns actions `(B, N)`.

    Args:
        function: the policy.
        config: has the scaler of the observations that come.
        takes_masks: whether its second argument is the masks of the states.
    """

    def __init__(
        self,
        function: Callable[..., NDArray],
        config: MultiDiscreteFQEConfig,
        takes_masks: bool = False,
    ) -> None:
        self._function, self._config, self._takes_masks = function, config, takes_masks

    def predict_best_action(
        self, x: TorchObservation, masks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Actions `(B, N)` for scaled observations `(B, obs)`, by masks `(B, N, K)` or None.

        Raises:
            InvalidActionSpaceError: the function returns no actions of this shape and space.
        """
        assert isinstance(x, torch.Tensor)
        scaler = self._config.observation_scaler
        observations = (x if scaler is None else scaler.reverse_transform(x)).cpu().numpy()
        if self._takes_masks:
            allowed = None if masks is None else masks.cpu().numpy()
            actions = self._function(observations, allowed)
        else:
            actions = self._function(observations)
        nvec = self._config.nvec or ()
        shape = len(observations), len(nvec)
        checked = as_choices(actions, shape, "the evaluated function", nvec)
        return torch.as_tensor(checked, device=x.device)

    def sample_action(self, x: TorchObservation) -> torch.Tensor:
        return self.predict_best_action(x)


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
        evaluated: Acting,
        mode: ActionMode,
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._tau = config.tau
        self._evaluated = evaluated
        self._mode = mode
        hard_sync(modules.targ_q_funcs, modules.q_funcs)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        modules = self._modules
        with torch.no_grad():
            next_actions = self._next_actions(batch)
            next_values = modules.targ_q_funcs.q_values(
                self._layout, batch.next_observations, next_actions
            )
            y = self.bootstrap(batch, next_values)
        values = modules.q_funcs.q_values(self._layout, batch.observations, batch.actions)
        loss = squared_error(values, y)
        self.minimize(loss, modules.optim)
        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._tau)
        return {"loss": loss.detach()}

    def _next_actions(self, batch: TorchMiniBatch) -> torch.Tensor:
        masks = next_masks_of(batch)
        if isinstance(self._evaluated, ActingFunction):
            return self._evaluated.predict_best_action(batch.next_observations, masks)
        assert isinstance(self._evaluated, MultiDiscreteImpl)
        samples = self._mode == "sample"
        return self._evaluated.act(batch.next_observations, mask_rule(masks), samples)

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._evaluated.predict_best_action(x)

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
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
        algo: a built algorithm of this package, or a function of observations `(B, obs)` that
            returns actions `(B, N)`, such as a rule; it may draw them at random.
        config: defaults if None; without `observation_scaler`, which is the algorithm's (a
            function's observations are as in the dataset, whatever scaler Q has).
        device: as in d3rlpy; must be the algorithm's.
        mode: evaluate the greedy or the sampled policy.
        takes_masks: whether a function's second argument is the masks `(B, N, K)` of the states,
            None if there are none. By default it must keep to a dataset's masks by itself. An
            algorithm always keeps to them.

    Raises:
        NvecMismatchError: the config has another action space, or an observation scaler.
        RuntimeError: the algorithm is not built.
    """

    config_class = MultiDiscreteFQEConfig

    def __init__(
        self,
        algo: MultiDiscreteAlgo[Any, Any] | Callable[..., NDArray],
        config: MultiDiscreteFQEConfig | None = None,
        device: DeviceArg = False,
        mode: ActionMode = "greedy",
        takes_masks: bool = False,
    ) -> None:
        config = dataclasses.replace(config or MultiDiscreteFQEConfig())
        if isinstance(algo, MultiDiscreteAlgo):
            _adopt_spaces(config, algo)
        super().__init__(config, device)
        self._algo = algo
        self._mode: ActionMode = mode
        self._takes_masks = takes_masks

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
        evaluated: Acting | None = (
            self._algo.impl
            if isinstance(self._algo, MultiDiscreteAlgo)
            else ActingFunction(self._algo, config, self._takes_masks)
        )
        assert evaluated is not None
        self._impl = FQEImpl(
            observation_shape, modules, config, self._device, evaluated, self._mode
        )

    @property
    def compiled(self) -> bool:
        """Whether updates are recorded; never those that call a function or choose by rules."""
        return isinstance(self._algo, MultiDiscreteAlgo) and super().compiled

    @property
    def updates_by_rules(self) -> bool:
        """Whether the evaluated algorithm has rules."""
        return isinstance(self._algo, MultiDiscreteAlgo) and bool(self._algo.config.rules)

    def save_policy(self, fname: str, masks: bool = False) -> None:
        """Writes the evaluated policy; a TypeError if it is a function."""
        if not isinstance(self._algo, MultiDiscreteAlgo):
            raise TypeError(
                "Expected an algorithm to save, but the evaluated policy is a function."
            )
        self._algo.save_policy(fname, masks)

    def predict(self, x: Observation) -> NDArray:
        if not isinstance(self._algo, MultiDiscreteAlgo):
            return self._call(x)
        return self._algo.predict(x)

    def predict_masked(self, x: Observation, masks: NDArray, sample: bool = False) -> NDArray:
        """Returns the evaluated policy's actions; a TypeError if it is a function without masks."""
        if isinstance(self._algo, MultiDiscreteAlgo):
            return self._algo.predict_masked(x, masks, sample)
        if not self._takes_masks:
            raise TypeError(
                "Expected an algorithm, or a function that takes masks (takes_masks=True)."
            )
        return self._call(x, masks)

    def sample_action(self, x: Observation) -> NDArray:
        if not isinstance(self._algo, MultiDiscreteAlgo):
            return self._call(x)
        return self._algo.sample_action(x)

    def _call(self, x: Observation, masks: NDArray | None = None) -> NDArray:
        """Returns the actions of a function."""
        function: Any = self._algo
        observations = np.asarray(x)
        actions: NDArray = (
            function(observations, masks) if self._takes_masks else function(observations)
        )
        return actions


def _adopt_spaces(config: MultiDiscreteFQEConfig, algo: MultiDiscreteAlgo[Any, Any]) -> None:
    """Gives the config the algorithm's action space and observation scaler."""
    if algo.impl is None:
        raise RuntimeError("Train or build the algorithm before evaluating it.")
    own = algo.config
    if config.nvec not in (None, own.nvec) or config.observation_scaler is not None:
        raise NvecMismatchError(
            "Expected a config without nvec and observation_scaler, which are the algorithm's, "
            f"got nvec={config.nvec} and {config.observation_scaler}."
        )
    config.nvec, config.observation_scaler = own.nvec, own.observation_scaler
