"""Objectives that train a factored critic, with or without a policy, which the config chooses."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import Shape, TorchObservation
from torch import nn

from spin_d3rlpy import fast
from spin_d3rlpy.algos.config import MultiDiscreteConfig, PolicyConfig, TPolicy
from spin_d3rlpy.algos.impl import (
    MultiDiscreteImpl,
    MultiDiscreteModules,
    PolicyImpl,
    PolicyModules,
)
from spin_d3rlpy.critics.base import ActionCritic, squared_error
from spin_d3rlpy.critics.factored import Decomposition, FactoredCritic


@dataclasses.dataclass()
class CriticConfig(MultiDiscreteConfig):
    """Fields of objectives that train a factored critic.

    Args:
        tau: Polyak coefficient of target networks, applied every step.
        n_critics: Q functions in the ensemble.
        decomposition: joint value as `"sum"` or `"mean"` of per-slot utilities.
        monte_carlo_share: share of the steps, from the first, whose targets are returns to the
            episode's end instead of one-step bootstraps, so that critics learn early.
    """

    tau: float = 0.005
    n_critics: int = 2
    decomposition: Decomposition = "sum"
    monte_carlo_share: float = 0.0


@dataclasses.dataclass(frozen=True)
class CriticModules(MultiDiscreteModules):
    """Online and target ensemble."""

    q_funcs: FactoredCritic  # or what an objective puts in its place
    targ_q_funcs: FactoredCritic


class CriticImpl(MultiDiscreteImpl):
    """Values of a factored ensemble and their targets."""

    _modules: CriticModules
    _config: CriticConfig

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hard_sync(self._modules.targ_q_funcs, self._modules.q_funcs)

    def q_values(
        self, critic: ActionCritic, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, B)`."""
        return critic.q_values(self._slot_layout, observations, actions)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        return self.q_values(self._modules.q_funcs, x, action).mean(0)

    def copy_q_function_from(self, impl: QLearningAlgoImplBase) -> None:
        """Copies another algorithm's critics, also the units of their values.

        Raises:
            ValueError: the other critics are of another kind or size.
        """
        critic = self.q_function
        if not isinstance(impl, CriticImpl) or type(impl.q_function) is not type(critic):
            raise ValueError(
                f"Expected an algorithm with a {type(critic).__name__}, got "
                f"{type(getattr(impl, 'q_function', impl)).__name__}."
            )
        try:
            critic.load_state_dict(impl.q_function.state_dict())
        except RuntimeError as error:
            raise ValueError(f"The other critics have other sizes: {error}") from error

    @property
    def q_function(self) -> nn.ModuleList:
        return self._modules.q_funcs

    @property
    def target_q_function(self) -> nn.ModuleList:
        return self._modules.targ_q_funcs


@dataclasses.dataclass()
class ActorCriticConfig(CriticConfig, PolicyConfig[TPolicy]):
    """Fields of objectives that train a policy and a factored critic.

    Args:
        critic_learning_rate: of Q functions and value functions.
        critic_optim_factory: likewise.
        critic_encoder_factory: hidden layers of each Q function.
    """

    critic_learning_rate: float = 3e-4
    critic_optim_factory: OptimizerFactory = make_optimizer_field()
    critic_encoder_factory: EncoderFactory = make_encoder_field()


@dataclasses.dataclass(frozen=True)
class ActorCriticModules(CriticModules, PolicyModules):
    """Networks and optimizers."""

    critic_optim: OptimizerWrapper


class ActorCriticImpl(CriticImpl, PolicyImpl):
    """Acting, values and common losses; subclasses add `compute_update`."""

    _modules: ActorCriticModules
    _config: ActorCriticConfig[Any]

    def compute_critic_loss(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """Squared errors against the bootstrapped target, added over the ensemble."""
        y = self.bootstrap(batch, next_values)
        values = self.q_values(self._modules.q_funcs, batch.observations, batch.actions)
        return squared_error(values, y)

    def weighted_imitation_loss(self, batch: TorchMiniBatch, weight: torch.Tensor) -> torch.Tensor:
        """Mean negative log-likelihood, weighted by `(B,)`."""
        log_prob = self.log_prob(batch)
        if fast.switch.counts_launches(log_prob):
            return fast.losses.weighted_mean(log_prob, weight, -1.0)
        return -(weight * log_prob).mean()

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        return self._modules.critic_optim.optim


def create_critic(
    config: CriticConfig, encoder_factory: EncoderFactory, observation_shape: Shape, device: str
) -> FactoredCritic:
    """Returns a new ensemble of factored Q functions with the hidden layers of a factory."""
    assert config.nvec is not None
    return FactoredCritic(
        cast_flat_shape(observation_shape),
        encoder_factory,
        config.nvec,
        config.n_critics,
        config.decomposition,
    ).to(device)


def create_critic_optim(algo: Any, network: nn.Module, factor: float = 1.0) -> OptimizerWrapper:
    """Returns the optimizer of an algorithm's Q functions or its value function.

    Args:
        algo: the algorithm.
        network: to be trained.
        factor: times the config's learning rate.
    """
    config = algo.config
    rate = factor * config.critic_learning_rate
    optim: OptimizerWrapper = algo.create_optim(
        config.critic_optim_factory, network.named_modules(), rate
    )
    return optim


def advantage_weights(
    advantage: torch.Tensor, scale: float, max_weight: float, share: float | None
) -> torch.Tensor:
    """Returns weights `(B,)` of advantages `(B,)`.

    They are `min(exp(scale * advantage), max_weight)`, or, with a `share`, of an effective sample
    size that is this share of the batch.
    """
    if share is None:
        return (scale * advantage).exp().clamp(max=max_weight)
    return weights_of_sample_size(advantage, share)


def weights_of_sample_size(advantage: torch.Tensor, share: float) -> torch.Tensor:
    """Returns weights `softmax(advantage / temperature) * B`, `(B,)`, of size `share * B`."""
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    steps = torch.linspace(0.0, 1.0, 17, device=scaled.device)[:, None]
    low, width = torch.full_like(scaled[0], -6.0), 12.0  # of the temperature's logarithm
    for _ in range(2):  # finer and finer; nothing waits for the device
        weights = (scaled / (low + width * steps).exp()).softmax(1)  # (17, B)
        sizes = 1.0 / (weights.square().sum(1) * weights.shape[1])
        first = (sizes > share).int().argmax()  # sizes rise with the temperature
        low, width = low + width * (first - 1) / 16, width / 16
    return weights.index_select(0, first[None])[0] * weights.shape[1]
