"""DecQN variants with a behavior-cloned policy: DecQN-BCQ, DecQN-IQL and DecQN-OneStep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.preprocessing import ObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.base import register
from spin_d3rlpy.algos.decqn.base import DecQN, DecQNConfig, DecQNImpl, DecQNModules
from spin_d3rlpy.critics import ValueFunction, combine_slots, expectile_loss
from spin_d3rlpy.data.batches import imitation_batch
from spin_d3rlpy.policies import FactoredPolicy
from spin_d3rlpy.policies.base import keep_supported
from spin_d3rlpy.scalers import standardized_states


@dataclasses.dataclass()
class ImitatingDecQNConfig(DecQNConfig):
    """Fields of DecQN variants that estimate the data's support by a factored policy.

    The policy shares the Q functions' hidden layers, learning rate and optimizer; states are
    standardized. Its step follows the utilities' and its loss is summed over slots; the published
    code has it first, with a mean (docs/explanation/differences.md).
    """

    observation_scaler: ObservationScaler | None = standardized_states()


@dataclasses.dataclass(frozen=True)
class ImitatingDecQNModules(DecQNModules):
    """Networks and optimizers of DecQN and of the imitating policy."""

    policy: FactoredPolicy
    actor_optim: OptimizerWrapper


class ImitatingDecQNImpl(DecQNImpl):
    """DecQN's update and a step of behavior cloning."""

    _modules: ImitatingDecQNModules

    def log_probs(self, observations: Any) -> torch.Tensor:
        """Returns the imitating policy's log-probabilities by slot, `(B, N, K)`."""
        logits: torch.Tensor = self._modules.policy(observations)
        return self._layout.split(logits).log_softmax(-1)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of the utilities, then one of the policy."""
        metrics = super().compute_update(batch, grad_step)
        imitated = imitation_batch(batch)
        actor_loss = -self._modules.policy.log_prob(imitated.observations, imitated.actions).mean()
        return {**metrics, "actor_loss": self.minimize(actor_loss, self._modules.actor_optim)}

    @property
    def policy(self) -> FactoredPolicy:  # type: ignore[override]
        """The imitating policy."""
        return self._modules.policy

    @property
    def policy_optim(self) -> torch.optim.Optimizer:
        return self._modules.actor_optim.optim


class WeighingDecQNImpl(ImitatingDecQNImpl):
    """Acts by weighing utilities against the imitating policy: `U_i / lambda + log pi_i`."""

    _config: WeighingDecQNConfig

    def choose(self, observations: Any, utilities: torch.Tensor) -> torch.Tensor:
        """Returns the actions `(B, N)` that are best by utilities and likely in the data."""
        log_probs = self.log_probs(observations)
        return (self._layout.split(utilities) / self._config.lam + log_probs).argmax(-1)


@dataclasses.dataclass()
class WeighingDecQNConfig(ImitatingDecQNConfig):
    """Fields of variants that act by `U_i / lambda + log pi_i`.

    Args:
        lam: temperature lambda; larger is closer to imitation. The source tunes it.
    """

    lam: float = 1.0


class ImitatingDecQN(DecQN):
    """Builds the ensembles and the policy."""

    modules_class: type[ImitatingDecQNModules] = ImitatingDecQNModules

    def _create_networks(self, observation_shape: Sequence[int]) -> dict[str, Any]:
        encoder = self._config.encoder_factory.create(observation_shape)
        policy = FactoredPolicy(observation_shape, encoder, self._nvec).to(self._device)
        optim = self._create_optim_of(policy)
        networks = super()._create_networks(observation_shape)
        return {"policy": policy, "actor_optim": optim} | networks


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
