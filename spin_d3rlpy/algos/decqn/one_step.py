"""One step of policy improvement over the behavior's utilities (DecQN-OneStep)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.imitating import (
    ImitatingDecQN,
    WeighingDecQNConfig,
    WeighingDecQNImpl,
)
from spin_d3rlpy.critics import combine_slots


@dataclasses.dataclass()
class DecQNOneStepConfig(WeighingDecQNConfig):
    r"""DecQN-OneStep: values of the behavior policy, improved upon once, in acting.

    .. math::

        y = r + \gamma (1 - d)\, \mathbb{E}_{a' \sim \pi} \bar Q(s', a'), \qquad
        a_i = \operatorname{argmax}_k U_i(s, k) / \lambda + \log \pi_i(k|s)

    with the behavior-cloned :math:`\pi`. The expectation is exact, a sum of per-slot expectations.

    References:
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.
        * Brandfonbrener et al., Offline RL Without Off-Policy Evaluation, 2021.
    """


class DecQNOneStepImpl(WeighingDecQNImpl):
    """The update of DecQN-OneStep."""

    def compute_next_values(self, observations: Any) -> torch.Tensor:
        utilities = self._modules.targ_q_funcs.utilities(observations).mean(0)
        probs = self.log_probs(observations).exp()
        slots = (probs * self._layout.split(utilities, fill=0.0)).sum(-1)
        return combine_slots(slots, self._config.decomposition)


@register("spin_decqn_one_step")
class DecQNOneStep(ImitatingDecQN):
    """DecQN with a single step of policy improvement, for offline training."""

    config_class = DecQNOneStepConfig
    impl_class = DecQNOneStepImpl
