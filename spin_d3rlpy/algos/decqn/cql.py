"""DecQN with conservative Q-learning's penalty per slot."""

from __future__ import annotations

import dataclasses

import torch
from d3rlpy.preprocessing import ObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.base import DecQN, DecQNConfig, DecQNImpl
from spin_d3rlpy.scalers import standardized_states


@dataclasses.dataclass()
class DecQNCQLConfig(DecQNConfig):
    r"""DecQN-CQL: DecQN's loss, plus for every member of the ensemble a penalty.

    .. math::

        \alpha\, \mathbb{E} \frac{1}{N} \sum_i
            \Big[ \log \sum_k \exp U_i(s, k) - U_i(s, a_i) \Big]

    States are standardized by default. The published code has one penalty, on the ensemble's mean
    utilities (docs/explanation/differences.md).

    References:
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.
        * Kumar et al., Conservative Q-Learning for Offline RL, 2020, equation 4.

    Args:
        alpha: weight of the penalty. The source tunes it; the default is d3rlpy's.
    """

    alpha: float = 1.0
    observation_scaler: ObservationScaler | None = standardized_states()


class DecQNCQLImpl(DecQNImpl):
    """The update of DecQN-CQL."""

    _config: DecQNCQLConfig

    def compute_loss(self, batch: TorchMiniBatch, utilities: torch.Tensor) -> torch.Tensor:
        everything = self._layout.split(utilities).logsumexp(-1)  # (E, B, N)
        actions = batch.actions.expand(len(utilities), *batch.actions.shape)
        chosen = self._layout.gather(utilities, actions)  # (E, B, N)
        penalty = (everything - chosen).mean((1, 2)).sum()
        return super().compute_loss(batch, utilities) + self._config.alpha * penalty


@register("spin_decqn_cql")
class DecQNCQL(DecQN):
    """DecQN with conservative utilities, for offline training."""

    config_class = DecQNCQLConfig
    impl_class = DecQNCQLImpl
