"""Decoupled Q-networks (DecQN), Q-learning by per-slot utilities, and DecQN-CQL."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.preprocessing import ObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from spin_d3rlpy.algos.actor_critic import CriticConfig, CriticImpl, CriticModules
from spin_d3rlpy.algos.base import MultiDiscreteAlgo, register
from spin_d3rlpy.algos.impl import encoder_field
from spin_d3rlpy.critics import Decomposition, FactoredCritic, combine_slots, polyak_update
from spin_d3rlpy.scalers import standardized_states


@dataclasses.dataclass()
class DecQNConfig(CriticConfig):
    r"""DecQN: factored double Q-learning.

    .. math::

        Q(s, a) = \frac{1}{N} \sum_i U_i(s, a_i), \qquad
        y = \sum_{k<n} \gamma^k r_k + \gamma^n (1 - d)\,
            \bar Q(s', \operatorname{argmax}_{a'} \tilde Q(s', a'))

    where :math:`\tilde Q` is the mean of the online ensemble and :math:`\bar Q` that of the
    target ensemble. The maximum over the joint space is N independent maxima.

    States are not standardized by default, because online training starts without data. For
    differences from the published offline code see docs/explanation/differences.md.

    References:
        * Seyde et al., Solving Continuous Control via Q-learning, 2023, equation 3.
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.
    """

    learning_rate: float = 3e-4
    optim_factory: OptimizerFactory = make_optimizer_field()
    encoder_factory: EncoderFactory = encoder_field(
        lambda: VectorEncoderFactory(hidden_units=[512, 512])
    )
    decomposition: Decomposition = "mean"


@dataclasses.dataclass(frozen=True)
class DecQNModules(CriticModules):
    """Networks and optimizer of DecQN."""

    optim: OptimizerWrapper


class DecQNImpl(CriticImpl):
    """The update of DecQN; variants override next values and losses."""

    _modules: DecQNModules
    _config: DecQNConfig

    def choose(self, observations: Any, utilities: torch.Tensor) -> torch.Tensor:
        """Returns the actions `(B, N)` that are best by utilities `(B, S)`."""
        return self._layout.argmax(utilities)

    def compute_next_values(self, observations: Any) -> torch.Tensor:
        """Returns bootstrap values `(B,)` by double Q-learning."""
        online = self._modules.q_funcs.utilities(observations).mean(0)
        target = self._modules.targ_q_funcs.utilities(observations).mean(0)
        chosen = self._layout.gather(target, self.choose(observations, online))
        return combine_slots(chosen, self._config.decomposition)

    def compute_loss(self, batch: TorchMiniBatch, utilities: torch.Tensor) -> torch.Tensor:
        """Huber loss of utilities `(E, B, S)`, averaged over rows and summed over the ensemble."""
        with torch.no_grad():
            y = self.bootstrap(batch, self.compute_next_values(batch.next_observations))
        values = self._modules.q_funcs.values(self._layout, utilities, batch.actions)
        return smooth_l1_loss(values, y.expand_as(values)) * len(values)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        utilities = self._modules.q_funcs.utilities(batch.observations)
        loss = self.minimize(self.compute_loss(batch, utilities), self._modules.optim)
        polyak_update(self._modules.targ_q_funcs, self._modules.q_funcs, self._config.tau)
        return {"loss": loss}

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        return self.choose(x, self._modules.q_funcs.utilities(x).mean(0))

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self.inner_predict_best_action(x)

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        return self._modules.optim.optim


@register("spin_decqn")
class DecQN(MultiDiscreteAlgo[DecQNImpl, DecQNConfig]):
    """DecQN, for online training and (as a baseline that ignores the support) offline."""

    config_class: type[DecQNConfig] = DecQNConfig
    impl_class: type[DecQNImpl] = DecQNImpl
    modules_class: type[DecQNModules] = DecQNModules

    def _create_networks(self, observation_shape: Sequence[int]) -> dict[str, Any]:
        config = self._config
        online, target = (
            FactoredCritic(
                observation_shape,
                config.encoder_factory,
                self._nvec,
                config.n_critics,
                config.decomposition,
            ).to(self._device)
            for _ in range(2)
        )
        return {"q_funcs": online, "targ_q_funcs": target, "optim": self._create_optim_of(online)}

    def _create_optim_of(self, network: nn.Module) -> OptimizerWrapper:
        config = self._config
        return self._create_optim(
            config.optim_factory, network.named_modules(), config.learning_rate
        )


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
