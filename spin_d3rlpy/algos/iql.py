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
    ActorCriticConfig,
    ActorCriticImpl,
    ActorCriticModules,
    advantage_weights,
    create_critic,
    create_critic_optim,
)
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.critics.base import ValueFunction, expectile_loss
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data.buffer.batches import imitation_batch
from spin_d3rlpy.training.averages import polyak_update


@dataclasses.dataclass()
class IQLConfig(ActorCriticConfig[TPolicy]):
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
        weight_ess: if given, between 0 and 1, the weights' temperature is set per batch so that
            their effective sample size is this share of the batch; replaces `weight_temp` and
            `max_weight`.
        joint_critic: Q functions of the state and the whole action, which can value how choices
            go together, instead of utilities that are combined over slots.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    expectile: float = 0.8
    weight_temp: float = 3.0
    max_weight: float = 100.0
    weight_ess: float | None = None
    joint_critic: bool = False


@dataclasses.dataclass(frozen=True)
class IQLModules(ActorCriticModules):
    """Networks and optimizers of IQL."""

    value_func: ValueFunction
    value_optim: OptimizerWrapper


class IQLImpl(ActorCriticImpl):
    """The update of IQL."""

    _modules: IQLModules
    _config: IQLConfig[Any]

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
        imitated, config = imitation_batch(batch), self._config
        of_imitated = advantage if imitated is batch else self._advantage(imitated)
        weight = advantage_weights(
            of_imitated.detach(), config.weight_temp, config.max_weight, config.weight_ess
        )
        value_loss = expectile_loss(advantage, config.expectile)
        value_loss = self.minimize(value_loss, modules.value_optim)

        with torch.no_grad():
            next_values = modules.value_func(batch.next_observations)
        critic_loss = self.compute_critic_loss(batch, next_values)
        critic_loss = self.minimize(critic_loss, modules.critic_optim)
        metrics = {"critic_loss": critic_loss, "value_loss": value_loss}

        actor_loss = self.weighted_imitation_loss(imitated, weight)
        metrics["actor_loss"] = self.minimize(actor_loss, modules.actor_optim)

        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._config.tau)
        return metrics


@dataclasses.dataclass()
class _IQLArguments(IQLConfig[Any], PolicyArguments):
    """What `IQL(...)` takes."""


class IQL(PolicyAlgo[IQLImpl, IQLConfig[TPolicy]], name="spin_d3rlpy_iql"):
    """IQL with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = IQLConfig
    impl_class = IQLImpl

    @takes(_IQLArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config, size = self._config, cast_flat_shape(observation_shape)
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_actor_optim(policy)
        q_funcs = self._create_critic(observation_shape)
        value_func = ValueFunction(size, config.value_encoder_factory).to(self._device)
        modules = IQLModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(observation_shape),
            critic_optim=create_critic_optim(self, q_funcs),
            value_func=value_func,
            value_optim=create_critic_optim(self, value_func),
        )
        self._impl = self.impl_class(observation_shape, modules, config, self._device)

    def _create_critic(self, shape: Shape) -> Any:
        config, factory = self._config, self._config.critic_encoder_factory
        if not config.joint_critic:
            return create_critic(config, factory, shape, self._device)
        size = cast_flat_shape(shape)
        critic = JointCritic(size, factory, self._nvec, config.n_critics, config.layout)
        return critic.to(self._device)
