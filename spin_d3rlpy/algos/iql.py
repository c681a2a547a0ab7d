"""Implicit Q-learning (IQL) over any policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

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
from spin_d3rlpy.critics import JointCritic, ValueFunction, expectile_loss, polyak_update
from spin_d3rlpy.data.batches import imitation_batch


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
        value_encoder_factory: hidden layers of the value function.
        expectile: tau of the expectile regression.
        weight_temp: inverse temperature beta of the advantage weights.
        max_weight: largest advantage weight.
        joint_critic: Q functions of the state and the whole action, which can value how choices
            go together, instead of utilities that are combined over slots.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    expectile: float = 0.8
    weight_temp: float = 3.0
    max_weight: float = 100.0
    joint_critic: bool = False


@dataclasses.dataclass(frozen=True)
class IQLModules(ActorCriticModules):
    """Networks and optimizers of IQL."""

    value_func: ValueFunction
    value_optim: OptimizerWrapper


class IQLImpl(ActorCriticImpl):
    """The update of IQL."""

    _modules: IQLModules

    def __init__(
        self, observation_shape: Shape, modules: IQLModules, config: IQLConfig, device: str
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._expectile = config.expectile
        self._weight_temp = config.weight_temp
        self._max_weight = config.max_weight

    @torch.no_grad()
    def _advantage(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `min_e Q_e(s, a) - V(s)` under the target ensemble, `(B,)`."""
        target = self._modules.targ_q_funcs
        target_q = self.q_values(target, batch.observations, batch.actions).amin(0)
        advantage: torch.Tensor = target_q - self._modules.value_func(batch.observations)
        return advantage

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of V, then Q, then the policy, then the target critic."""
        modules = self._modules
        observations, actions = batch.observations, batch.actions
        with torch.no_grad():
            target_q = self.q_values(modules.targ_q_funcs, observations, actions).amin(0)
        advantage = target_q - modules.value_func(observations)
        imitated = imitation_batch(batch)
        weight = self.imitation_weight(batch, imitated, advantage.detach())
        value_loss = expectile_loss(advantage, self._expectile)
        self.minimize(value_loss, modules.value_optim)

        with torch.no_grad():
            next_values = modules.value_func(batch.next_observations)
        critic_loss = self.compute_critic_loss(batch, next_values)
        self.minimize(critic_loss, modules.critic_optim)

        metrics = {"critic_loss": critic_loss.detach(), "value_loss": value_loss.detach()}
        if modules.actor_optim is not None:
            actor_loss = self.weighted_imitation_loss(imitated, weight)
            self.minimize(actor_loss, modules.actor_optim)
            metrics["actor_loss"] = actor_loss.detach()

        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._tau)
        return metrics

    def imitation_weight(
        self, batch: TorchMiniBatch, imitated: TorchMiniBatch, advantage: torch.Tensor
    ) -> torch.Tensor:
        """Returns the weights of the policy's loss, `(B,)`.

        Args:
            batch: the critics' batch.
            imitated: the policy's batch, often the same.
            advantage: of the former, `(B,)`.
        """
        if imitated is not batch:
            advantage = self._advantage(imitated)
        return self.advantage_weights(advantage, self._weight_temp, self._max_weight)


class IQL(ActorCriticAlgo[IQLImpl, IQLConfig]):
    """IQL; the named algorithms in `spin_d3rlpy.algos.named` choose its policy."""

    config_class = IQLConfig
    impl_class: ClassVar[type[IQLImpl]] = IQLImpl

    def _create_critic(self, observation_shape: Sequence[int]) -> Any:
        if not self._config.joint_critic:
            return super()._create_critic(observation_shape)
        config = self._config
        return JointCritic(
            observation_shape, config.critic_encoder_factory, self._nvec, config.n_critics
        ).to(self._device)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        shape = cast_flat_shape(observation_shape)
        policy = self._create_policy(shape)
        q_funcs = self._create_critic(shape)
        value_func = ValueFunction(shape, self._config.value_encoder_factory).to(self._device)
        modules = IQLModules(
            policy=policy,
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(shape),
            value_func=value_func,
            actor_optim=self._create_actor_optim(policy),
            critic_optim=self._create_critic_optim(q_funcs),
            value_optim=self._create_critic_optim(value_func),
        )
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)
