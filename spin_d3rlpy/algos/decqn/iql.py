"""DecQN with implicit Q-learning's expectile values (DecQN-IQL)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import Shape

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.imitating import (
    ImitatingDecQN,
    ImitatingDecQNModules,
    WeighingDecQNConfig,
    WeighingDecQNImpl,
)
from spin_d3rlpy.critics import ValueFunction, expectile_loss


@dataclasses.dataclass()
class DecQNIQLConfig(WeighingDecQNConfig):
    r"""DecQN-IQL: a state value by expectile regression instead of a maximum.

    .. math::

        L_V = \mathbb{E} \big[ |\tau - \mathbb{1}(u < 0)| \, u^2 \big], \quad
            u = \bar Q(s, a) - V(s), \qquad
        y = r + \gamma (1 - d) V(s')

    with :math:`\bar Q` the target ensemble's mean; V is updated first. The loss is IQL's, not the
    published code's Huber loss (docs/explanation/differences.md). Actions are
    :math:`\operatorname{argmax}_k U_i(s, k) / \lambda + \log \pi_i(k|s)` with the
    behavior-cloned policy.

    References:
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.

    Args:
        expectile: tau of the expectile regression.
    """

    expectile: float = 0.8


@dataclasses.dataclass(frozen=True)
class DecQNIQLModules(ImitatingDecQNModules):
    """Networks and optimizers of DecQN-IQL."""

    value_func: ValueFunction
    value_optim: OptimizerWrapper


class DecQNIQLImpl(WeighingDecQNImpl):
    """The update of DecQN-IQL."""

    _modules: DecQNIQLModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: DecQNIQLModules,
        config: DecQNIQLConfig,
        device: str,
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._expectile = config.expectile

    def compute_next_values(self, observations: Any) -> torch.Tensor:
        values: torch.Tensor = self._modules.value_func(observations)
        return values

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of V, then of the utilities, then of the policy."""
        modules = self._modules
        with torch.no_grad():
            target_q = self.q_values(modules.targ_q_funcs, batch.observations, batch.actions)
        advantage = target_q.mean(0) - modules.value_func(batch.observations)
        value_loss = expectile_loss(advantage, self._expectile)
        self.minimize(value_loss, modules.value_optim)
        metrics = super().compute_update(batch, grad_step)
        return {**metrics, "value_loss": value_loss.detach()}


@register("spin_decqn_iql")
class DecQNIQL(ImitatingDecQN[DecQNIQLImpl, DecQNIQLConfig]):
    """DecQN with expectile values, for offline training."""

    config_class = DecQNIQLConfig

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        shape = cast_flat_shape(observation_shape)
        value_func = ValueFunction(shape, self._config.encoder_factory).to(self._device)
        config = self._config
        value_optim = self._create_optim(
            config.optim_factory, value_func.named_modules(), config.learning_rate
        )
        base = self._create_modules(observation_shape)
        modules = DecQNIQLModules(
            base.q_funcs,
            base.targ_q_funcs,
            base.optim,
            base.policy,
            base.actor_optim,
            value_func,
            value_optim,
        )
        self._impl = DecQNIQLImpl(observation_shape, modules, self._config, self._device)
