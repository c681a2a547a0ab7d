"""Implicit Q-learning (IQL) over any policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import Shape

from spin_d3rlpy.algos.actor_critic import (
    ActorCriticAlgo,
    ActorCriticConfig,
    ActorCriticImpl,
    ActorCriticModules,
)
from spin_d3rlpy.algos.critics import ValueFunction, expectile_loss
from spin_d3rlpy.algos.joint_critics import JointCritic
from spin_d3rlpy.data.batches import imitation_batch
from spin_d3rlpy.training.averages import polyak_update


@dataclasses.dataclass()
class IQLConfig(ActorCriticConfig):
    r"""Implicit Q-learning with factored values.

    .. math::

        L_V &= \mathbb{E} \big[ |\tau - \mathbb{1}(u < 0)| \, u^2 \big], \quad
            u = \min_e \bar Q_e(s, a) - V(s) \\
        L_Q &= \sum_e \mathbb{E} \big[ (r + \gamma (1 - d) V(s') - Q_e(s, a))^2 \big] \\
        L_\pi &= -\mathbb{E} \big[ \min(e^{\beta u}, w_{\max}) \sum_i \log \pi_i(a_i | s) \big]

    V is updated first and its new value is used in L_Q; the weight in L_pi uses V from before
    its update, as in SPIN's published code. For differences see docs/explanation/differences.md.

    References:
        * Kostrikov et al., Offline RL with Implicit Q-Learning, 2021, equations 5 to 7.
        * SPIN (Landers et al., ICLR 2026), section 5.

    Args:
        value_encoder_factory: d3rlpy's factory of the encoder of V.
        expectile: tau of the expectile regression.
        weight_temp: inverse temperature beta of the advantage weights.
        max_weight: largest advantage weight, w_max.
        joint_critic: Q functions of the state and the whole action, which can value how choices
            go together, instead of utilities that are combined over slots.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    expectile: float = 0.8
    weight_temp: float = 3.0
    max_weight: float = 100.0
    joint_critic: bool = False

    @property
    def gammas(self) -> tuple[float, ...]:
        """All discounts that values are learned by; `gamma` is the first one."""
        return (self.gamma,)


@dataclasses.dataclass(frozen=True)
class IQLModules(ActorCriticModules):
    """Networks and optimizers of IQL."""

    value_func: ValueFunction
    value_optim: OptimizerWrapper


class IQLImpl(ActorCriticImpl):
    """The update of IQL."""

    _modules: IQLModules
    _config: IQLConfig

    def _advantage(self, batch: TorchMiniBatch) -> torch.Tensor:
        """`min_e Q_e(s, a) - V(s)` under the target ensemble, `(B,)`, with V's gradient."""
        with torch.no_grad():
            q = self.q_values(self._modules.targ_q_funcs, batch.observations, batch.actions)
        advantage: torch.Tensor = q.amin(0) - self._modules.value_func(batch.observations)
        return advantage

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of V, then Q, then the policy, then the target critic."""
        modules = self._modules
        advantage = self._advantage(batch)
        imitated = imitation_batch(batch)
        weight = self.imitation_weight(batch, imitated, advantage.detach())
        value_loss = expectile_loss(advantage, self._config.expectile)
        value_loss = self.minimize(value_loss, modules.value_optim)

        with torch.no_grad():
            next_values = modules.value_func(batch.next_observations)
        critic_loss = self.compute_critic_loss(batch, next_values)
        critic_loss = self.minimize(critic_loss, modules.critic_optim)
        metrics = {"critic_loss": critic_loss, "value_loss": value_loss}

        if modules.actor_optim is not None:
            actor_loss = self.weighted_imitation_loss(imitated, weight)
            metrics["actor_loss"] = self.minimize(actor_loss, modules.actor_optim)

        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._config.tau)
        return metrics

    def imitation_weight(
        self, batch: TorchMiniBatch, imitated: TorchMiniBatch, advantage: torch.Tensor
    ) -> torch.Tensor:
        """Returns the weights of the policy's loss on `imitated`, `(B,)`.

        `advantage` is that of the critics' batch, often the same.
        """
        if imitated is not batch:
            advantage = self._advantage(imitated).detach()
        return self.advantage_weights(advantage, self._config.weight_temp, self._config.max_weight)


class IQL(ActorCriticAlgo[IQLImpl, IQLConfig]):
    """IQL; the named algorithms in `spin_d3rlpy.algos.named` choose its policy."""

    config_class: type[IQLConfig] = IQLConfig
    impl_class: type[IQLImpl] = IQLImpl

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        modules = self.create_modules(observation_shape)
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)

    def create_modules(self, observation_shape: Shape) -> IQLModules:
        """Returns new networks and their optimizers."""
        values = self._config.value_encoder_factory
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_actor_optim(policy)
        q_funcs = self.create_critic(observation_shape)
        value_func = self.create_value_function(observation_shape, values)
        return IQLModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=self.create_critic(observation_shape),
            critic_optim=self.create_critic_optim(q_funcs),
            value_func=value_func,
            value_optim=self.create_critic_optim(value_func),
        )

    def create_critic(self, observation_shape: Shape) -> Any:
        if not self._config.joint_critic:
            return super().create_critic(observation_shape)
        config = self._config
        shape, factory = cast_flat_shape(observation_shape), config.critic_encoder_factory
        n_discounts = len(config.gammas)
        critic = JointCritic(
            shape, factory, self._nvec, config.n_critics, config.layout, n_discounts
        )
        return critic.to(self._device)
