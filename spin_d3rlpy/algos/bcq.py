"""Batch-constrained Q-learning (BCQ) over any policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import Shape

from spin_d3rlpy.algos.actor_critic import (
    ActorCriticConfig,
    ActorCriticImpl,
    ActorCriticModules,
    create_critic,
    create_critic_optim,
)
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.algos.impl import best_choices
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.critics.base import best_of
from spin_d3rlpy.critics.factored import FactoredCritic, combine_slots
from spin_d3rlpy.data.buffer.batches import imitation_batch
from spin_d3rlpy.policies import IndependentPolicy
from spin_d3rlpy.policies.base import candidate_noise, keep_supported
from spin_d3rlpy.policies.feature_cache import next_policy_input
from spin_d3rlpy.training.averages import polyak_update


@dataclasses.dataclass()
class BCQConfig(ActorCriticConfig[TPolicy]):
    r"""Discrete batch-constrained Q-learning with factored values.

    .. math::

        L_\pi &= -\mathbb{E} \sum_i \log \pi_i(a_i | s) \\
        L_Q &= \sum_e \mathbb{E} \big[ (r + \gamma (1 - d) \min_e
            \sum_i \max_{k \in \mathcal{S}_i(s')} \bar U_{e,i}(s', k) - Q_e(s, a))^2 \big], \quad
            \mathcal{S}_i(s) = \{ k : \pi_i(k|s) \ge \epsilon \max_j \pi_i(j|s) \}

    Acting takes each slot's supported choice with the largest minimum over the ensemble. There is
    no double-Q step. An autoregressive policy has no such sets: target and action maximize the
    ensemble's minimum Q over `n_action_samples` samples of the policy. `predict` draws them with
    fixed noise, so that it is a function of the observation; `sample_action` with fresh noise, as
    the published code does. For other differences see docs/explanation/differences.md.

    References:
        * Fujimoto et al., Benchmarking Batch Deep RL Algorithms, 2019, equation 13.
        * SPIN (Landers et al., ICLR 2026), section 5.

    Args:
        action_flexibility: epsilon, least probability relative to the slot's most likely choice.
        n_action_samples: candidates of an autoregressive policy.
    """

    action_flexibility: float = 0.3
    n_action_samples: int = 10


class BCQImpl(ActorCriticImpl):
    """The update of BCQ."""

    _config: BCQConfig[Any]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        n = self._config.n_action_samples
        self._candidate_noise = candidate_noise(self._slot_layout, n, self.device)

    def compute_next_values(
        self, observations: Any, inputs: Any, rule: Rule | None = None
    ) -> torch.Tensor:
        """Returns the largest supported value `(B,)` under the target ensemble, by a rule."""
        critic, policy = self._modules.targ_q_funcs, self._modules.policy
        utilities = critic.utilities(observations)  # (E, B, S)
        if isinstance(policy, IndependentPolicy):
            share = self._config.action_flexibility
            logits = policy(inputs)
            supported = keep_supported(self._slot_layout, utilities, logits, share)
            if rule is not None:
                return self._values_by_rule(utilities, supported, logits, rule)
            return combine_slots(supported.amax(-1), self._config.decomposition).amin(0)
        n = self._config.n_action_samples
        actions = policy.sample_several(inputs, n, rule=rule)
        values = critic.values(self._slot_layout, utilities, actions)  # (E, A, B)
        return values.amin(0).amax(0)

    def _values_by_rule(
        self,
        utilities: torch.Tensor,
        supported: torch.Tensor,
        logits: torch.Tensor,
        rule: Rule,
    ) -> torch.Tensor:
        """Values `(B,)` of each member's best action by the rule, the smallest of them."""
        likely = self._slot_layout.split(logits).expand_as(supported)  # (E, B, N, K)
        best = best_choices(self._slot_layout, supported.flatten(0, 1), rule, likely.flatten(0, 1))
        chosen = self._slot_layout.gather(utilities, best.unflatten(0, supported.shape[:2]))
        return combine_slots(chosen, self._config.decomposition).amin(0)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of Q, then the policy, then the target critic."""
        modules = self._modules
        rule = self.rule_at_next(batch)
        with torch.no_grad():
            next_values = self.compute_next_values(
                batch.next_observations, next_policy_input(batch), rule
            )
        critic_loss = self.compute_critic_loss(batch, next_values)
        critic_loss = self.minimize(critic_loss, modules.critic_optim)

        actor_loss = -self.log_prob(imitation_batch(batch)).mean()
        actor_loss = self.minimize(actor_loss, modules.actor_optim)

        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._config.tau)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._best_action(x, self._candidate_noise, self.rule_and(extra))

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._best_action(x, None, self.rule_and(extra))

    def _best_action(
        self, observations: Any, noise: torch.Tensor | None, rule: Rule | None
    ) -> torch.Tensor:
        """Best supported actions `(B, N)`; candidates are fresh without noise."""
        critic: FactoredCritic = self._modules.q_funcs
        policy = self.acting_policy
        if isinstance(policy, IndependentPolicy):
            utilities, logits = critic.utilities(observations).amin(0), policy(observations)
            share = self._config.action_flexibility
            supported = keep_supported(self._slot_layout, utilities, logits, share)
            return best_choices(
                self._slot_layout, supported, rule, otherwise=self._slot_layout.split(logits)
            )
        n = self._config.n_action_samples
        actions = policy.sample_several(observations, n, noise, rule=rule)  # (A, B, N)
        choices = actions.clamp(min=0)  # in a file, -1 is no choice
        return best_of(actions, critic.q_values(self._slot_layout, observations, choices))


@dataclasses.dataclass()
class _BCQArguments(BCQConfig[Any], PolicyArguments):
    """What `BCQ(...)` takes."""


class BCQ(PolicyAlgo[BCQImpl, BCQConfig[TPolicy]], name="spin_d3rlpy_bcq"):
    """BCQ with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = BCQConfig
    impl_class = BCQImpl
    _acts_in_updates = True

    @takes(_BCQArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config, factory = self._config, self._config.critic_encoder_factory
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_actor_optim(policy)
        q_funcs = create_critic(config, factory, observation_shape, self._device)
        modules = ActorCriticModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=create_critic(config, factory, observation_shape, self._device),
            critic_optim=create_critic_optim(self, q_funcs),
        )
        self._impl = self.impl_class(observation_shape, modules, config, self._device)
