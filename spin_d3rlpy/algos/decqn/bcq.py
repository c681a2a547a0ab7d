"""DecQN restricted to choices that the data supports (DecQN-BCQ)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.imitating import (
    ImitatingDecQN,
    ImitatingDecQNConfig,
    ImitatingDecQNImpl,
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

    _config: DecQNBCQConfig

    def choose(self, observations: Any, utilities: torch.Tensor) -> torch.Tensor:
        logits = self._modules.policy(observations)
        share = self._config.action_flexibility
        return keep_supported(self._layout, utilities, logits, share).argmax(-1)


@register("spin_decqn_bcq")
class DecQNBCQ(ImitatingDecQN):
    """DecQN with batch constraints, for offline training."""

    config_class = DecQNBCQConfig
    impl_class = DecQNBCQImpl
