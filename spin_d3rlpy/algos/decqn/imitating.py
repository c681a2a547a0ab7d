"""Common parts of the DecQN variants with a behavior-cloned policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.preprocessing import ObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.decqn.base import DecQN, DecQNConfig, DecQNImpl, DecQNModules
from spin_d3rlpy.data.batches import imitation_batch
from spin_d3rlpy.policies import FactoredPolicy
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
