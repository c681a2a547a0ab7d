"""DecQN restricted to choices that the data supports (DecQN-BCQ)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.types import Shape

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.imitating import (
    ImitatingDecQN,
    ImitatingDecQNConfig,
    ImitatingDecQNImpl,
    ImitatingDecQNModules,
)
from spin_d3rlpy.policies.base import keep_supported


@dataclasses.dataclass()
class DecQNBCQConfig(ImitatingDecQNConfig):
    r"""DecQN-BCQ: DecQN whose maxima, in targets and in acting, are over supported choices.

    .. math::

        \mathcal{S}_i(s) = \{ k : \pi_i(k|s) \ge \epsilon \max_j \pi_i(j|s) \}

    References:
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.

    Args:
        action_flexibility: epsilon, least probability relative to the slot's most likely choice;
            the published code's default.
    """

    action_flexibility: float = 0.5


class DecQNBCQImpl(ImitatingDecQNImpl):
    """The update of DecQN-BCQ."""

    def __init__(
        self,
        observation_shape: Shape,
        modules: ImitatingDecQNModules,
        config: DecQNBCQConfig,
        device: str,
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._action_flexibility = config.action_flexibility

    def choose(self, observations: Any, utilities: torch.Tensor) -> torch.Tensor:
        logits = self._modules.policy(observations)
        supported = keep_supported(self._layout, utilities, logits, self._action_flexibility)
        return supported.argmax(-1)


@register("spin_decqn_bcq")
class DecQNBCQ(ImitatingDecQN[DecQNBCQImpl, DecQNBCQConfig]):
    """DecQN with batch constraints, for offline training."""

    config_class = DecQNBCQConfig

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        modules = self._create_modules(observation_shape)
        self._impl = DecQNBCQImpl(observation_shape, modules, self._config, self._device)
