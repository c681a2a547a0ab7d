"""What objectives share beyond the base: a policy, a factored critic, or both.

An objective is one file that subclasses config, impl and algorithm with its losses; which policy
it trains is the config's `actor_encoder_factory`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import Shape, TorchObservation
from torch import nn

from spin_d3rlpy._compat import fuse_adam
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.impl import MultiDiscreteConfig, MultiDiscreteImpl, MultiDiscreteModules
from spin_d3rlpy.critics import Decomposition, FactoredCritic
from spin_d3rlpy.data.buffer import policy_input
from spin_d3rlpy.policies import Policy, create_policy

# -- a policy --------------------------------------------------------------------------------


@dataclasses.dataclass()
class PolicyConfig(MultiDiscreteConfig):
    """Fields of objectives that train a policy.

    Args:
        actor_learning_rate: of the policy.
        actor_optim_factory: optimizer of the policy.
        actor_encoder_factory: decides the policy: `SPINEncoderFactory`, `SAINTEncoderFactory`,
            `AutoregressiveEncoderFactory`, or any d3rlpy encoder factory for a factored policy.
        batch_size: rows of a mini-batch.
        nvec: number of choices of each sub-action.
        n_steps: gradient steps of `fit` when it is not told.
    """

    actor_learning_rate: float = 3e-4
    actor_optim_factory: OptimizerFactory = make_optimizer_field()
    actor_encoder_factory: EncoderFactory = make_encoder_field()


@dataclasses.dataclass(frozen=True)
class PolicyModules(MultiDiscreteModules):
    """A policy and its optimizer."""

    policy: Policy
    actor_optim: OptimizerWrapper


class PolicyImpl(MultiDiscreteImpl):
    """Acting by a policy."""

    _modules: PolicyModules

    @property
    def n_tokens(self) -> int:
        """Rows of the policy's matrix products for one observation."""
        return self._modules.policy.n_tokens

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        """Greedy actions `(B, N)`."""
        return self._modules.policy.greedy(x)

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        """Sampled actions `(B, N)`."""
        return self._modules.policy.sample(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        """Raises NotImplementedError: there is no critic."""
        raise NotImplementedError("Behavior cloning does not learn values.")

    def log_prob(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Log-probability of the batch's actions, `(B,)`."""
        return self._modules.policy.log_prob(policy_input(batch), batch.actions)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """The policy network."""
        return self._modules.policy

    @property
    def policy_optim(self) -> torch.optim.Optimizer:
        """The policy's optimizer."""
        return self._modules.actor_optim.optim


TConfig = TypeVar("TConfig", bound=PolicyConfig)
TImpl = TypeVar("TImpl", bound=MultiDiscreteImpl)


class PolicyAlgo(MultiDiscreteAlgo[TImpl, TConfig]):
    """Builds a policy from the config."""

    def _create_policy(self, observation_shape: Sequence[int]) -> Policy:
        policy = create_policy(self._config.actor_encoder_factory, observation_shape, self._nvec)
        return policy.to(self._device)

    def _create_actor_optim(self, policy: Policy) -> OptimizerWrapper:
        return fuse_adam(
            self._config.actor_optim_factory.create(
                policy.trainable_modules(),
                lr=self._config.actor_learning_rate,
                compiled=self.compiled,
            )
        )


# -- a factored critic -----------------------------------------------------------------------


@dataclasses.dataclass()
class CriticConfig(MultiDiscreteConfig):
    """Fields of objectives that train a factored critic.

    Args:
        gamma: discount factor.
        tau: Polyak coefficient of target networks, applied every step.
        n_critics: Q functions in the ensemble.
        decomposition: how per-slot utilities make a joint value, `"sum"` or `"mean"`.
    """

    tau: float = 0.005
    n_critics: int = 2
    decomposition: Decomposition = "sum"


@dataclasses.dataclass(frozen=True)
class CriticModules(MultiDiscreteModules):
    """Online and target ensemble."""

    q_funcs: FactoredCritic
    targ_q_funcs: FactoredCritic


class CriticImpl(MultiDiscreteImpl):
    """Values of a factored ensemble, and targets made of them."""

    _modules: CriticModules

    def __init__(
        self, observation_shape: Shape, modules: CriticModules, config: CriticConfig, device: str
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._tau = config.tau
        self._decomposition = config.decomposition
        hard_sync(modules.targ_q_funcs, modules.q_funcs)

    def q_values(
        self, critic: FactoredCritic, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, B)`."""
        return critic.q_values(self._layout, observations, actions)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        """Mean over the ensemble of `Q(s, a)`, `(B,)`."""
        return self.q_values(self._modules.q_funcs, x, action).mean(0)

    @property
    def q_function(self) -> nn.ModuleList:
        """The online ensemble."""
        return self._modules.q_funcs

    @property
    def target_q_function(self) -> nn.ModuleList:
        """The target ensemble."""
        return self._modules.targ_q_funcs


# -- both ------------------------------------------------------------------------------------


@dataclasses.dataclass()
class ActorCriticConfig(CriticConfig, PolicyConfig):
    """Fields of objectives that train a policy beside a factored critic.

    Args:
        critic_learning_rate: of Q functions (and of value functions).
        critic_optim_factory: optimizer of Q functions (and of value functions).
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
    """Acting, values and the losses that objectives share; subclasses add `compute_update`."""

    _modules: ActorCriticModules

    def compute_critic_loss(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """Squared errors against the bootstrapped target, added over the ensemble."""
        y = self.bootstrap(batch, next_values)
        values = self.q_values(self._modules.q_funcs, batch.observations, batch.actions)
        return (values - y).square().mean(1).sum()

    def weighted_imitation_loss(
        self, batch: TorchMiniBatch, log_weight: torch.Tensor, max_weight: float
    ) -> torch.Tensor:
        """Negative log-likelihood weighted by `min(exp(log_weight), max_weight)`, `(B,)`."""
        weight = log_weight.exp().clamp(max=max_weight)
        return -(weight * self.log_prob(batch)).mean()

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        """The ensemble's optimizer."""
        return self._modules.critic_optim.optim


TActorCriticConfig = TypeVar("TActorCriticConfig", bound=ActorCriticConfig)


class ActorCriticAlgo(PolicyAlgo[TImpl, TActorCriticConfig]):
    """Builds a policy and critics from the config."""

    def _create_critic(self, observation_shape: Sequence[int]) -> FactoredCritic:
        return FactoredCritic(
            observation_shape,
            self._config.critic_encoder_factory,
            self._nvec,
            self._config.n_critics,
            self._config.decomposition,
        ).to(self._device)

    def _create_critic_optim(self, network: nn.Module) -> OptimizerWrapper:
        return fuse_adam(
            self._config.critic_optim_factory.create(
                network.named_modules(),
                lr=self._config.critic_learning_rate,
                compiled=self.compiled,
            )
        )
