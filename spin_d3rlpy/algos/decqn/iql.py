"""DecQN with implicit Q-learning's expectile values (DecQN-IQL)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch

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
    _config: DecQNIQLConfig

    def compute_next_values(self, observations: Any) -> torch.Tensor:
        values: torch.Tensor = self._modules.value_func(observations)
        return values

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of V, then of the utilities, then of the policy."""
        modules = self._modules
        with torch.no_grad():
            target_q = self.q_values(modules.targ_q_funcs, batch.observations, batch.actions)
        advantage = target_q.mean(0) - modules.value_func(batch.observations)
        value_loss = expectile_loss(advantage, self._config.expectile)
        value_loss = self.minimize(value_loss, modules.value_optim)
        return {**super().compute_update(batch, grad_step), "value_loss": value_loss}


@register("spin_decqn_iql")
class DecQNIQL(ImitatingDecQN):
    """DecQN with expectile values, for offline training."""

    config_class = DecQNIQLConfig
    impl_class = DecQNIQLImpl
    modules_class = DecQNIQLModules

    def _create_networks(self, observation_shape: Sequence[int]) -> dict[str, Any]:
        value_func = ValueFunction(observation_shape, self._config.encoder_factory)
        optim = self._create_optim_of(value_func.to(self._device))
        networks = super()._create_networks(observation_shape)
        return {"value_func": value_func, "value_optim": optim} | networks
