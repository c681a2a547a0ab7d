"""Advantage-weighted actor-critic (AWAC) over any policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import Shape

from spin_d3rlpy.algos.actor_critic import (
    ActorCriticConfig,
    ActorCriticImpl,
    advantage_weights,
    create_critic,
    create_critic_optim,
)
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.algos.iql import IQLModules
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.rules import RowMask, Rule, product_part
from spin_d3rlpy.critics.base import ValueFunction
from spin_d3rlpy.critics.factored import combine_slots
from spin_d3rlpy.data.buffer.batches import imitation_batch
from spin_d3rlpy.policies import IndependentPolicy
from spin_d3rlpy.policies.feature_cache import policy_input
from spin_d3rlpy.training.averages import polyak_update


@dataclasses.dataclass()
class AWACConfig(ActorCriticConfig[TPolicy]):
    r"""Advantage-weighted actor-critic with factored values and a state-value function.

    .. math::

        L_Q &= \sum_e \mathbb{E} \big[ (r + \gamma (1 - d) \bar V(s') - Q_e(s, a))^2 \big] \\
        L_\pi &= -\mathbb{E} \big[ \min(e^{A / \lambda}, w_{\max}) \sum_i \log \pi_i(a_i|s) \big],
            \quad A = \min_e Q_e(s, a) - V(s) \\
        L_V &= \mathbb{E} \big[ (\min_e \mathbb{E}_{a \sim \pi} \bar Q_e(s, a) - V(s))^2 \big]

    They are minimized in this order, each with the networks updated before. The expectation is
    exact for policies with independent slots (a sum of per-slot expectations). For an
    autoregressive policy, and with rules, V's target is the mean of
    :math:`\min_e \bar Q_e(s, a)` over `n_action_samples` samples, as in SPIN's published code
    (docs/explanation/differences.md).

    References:
        * Nair et al., AWAC: Accelerating Online RL with Offline Datasets, 2020, equations 6 and 13.
        * SPIN (Landers et al., ICLR 2026), section 5.

    Args:
        value_encoder_factory: d3rlpy's factory of the encoder of V.
        lam: temperature lambda of the advantage weights.
        max_weight: largest advantage weight, w_max.
        weight_ess: if given, between 0 and 1, the weights' temperature is set per batch so that
            their effective sample size is this share of the batch; replaces `lam` and `max_weight`.
        n_action_samples: actions sampled for V's target where it is not exact.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    lam: float = 0.3
    max_weight: float = 100.0
    weight_ess: float | None = None
    n_action_samples: int = 4


@dataclasses.dataclass(frozen=True)
class AWACModules(IQLModules):
    """Networks and optimizers of AWAC."""

    targ_value_func: ValueFunction


class AWACImpl(ActorCriticImpl):
    """The update of AWAC."""

    _modules: AWACModules
    _config: AWACConfig[Any]

    def compute_expected_values(
        self, observations: Any, inputs: Any, rule: Rule | None = None
    ) -> torch.Tensor:
        """Returns V's target, the value `(B,)` of the policy by a rule, by the target ensemble."""
        policy = self._modules.policy
        utilities = self._modules.targ_q_funcs.utilities(observations)  # (E, B, S)
        # By a rule slots are not independent, by masks they are.
        is_product = rule is None or isinstance(rule, RowMask)
        if isinstance(policy, IndependentPolicy) and is_product:
            logits = product_part(rule, self._slot_layout.split(policy(inputs)))
            probs = logits.softmax(-1)  # (B, N, K)
            slots = (probs * self._slot_layout.split(utilities, fill=0.0)).sum(-1)  # (E, B, N)
            return combine_slots(slots, self._config.decomposition).amin(0)
        n = self._config.n_action_samples
        actions = policy.sample_several(inputs, n, rule=rule)  # (A, B, N)
        values = self._modules.targ_q_funcs.values(self._slot_layout, utilities, actions)
        return values.amin(0).mean(0)

    @torch.no_grad()
    def _advantage(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `min_e Q_e(s, a) - V(s)` under the online ensemble, `(B,)`."""
        q = self.q_values(self._modules.q_funcs, batch.observations, batch.actions).amin(0)
        advantage: torch.Tensor = q - self._modules.value_func(batch.observations)
        return advantage

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of Q, then the policy, then V, then both target networks."""
        modules = self._modules
        observations, actions = batch.observations, batch.actions
        with torch.no_grad():
            next_values = modules.targ_value_func(batch.next_observations)
        critic_loss = self.compute_critic_loss(batch, next_values)
        critic_loss = self.minimize(critic_loss, modules.critic_optim)

        with torch.no_grad():
            q = self.q_values(modules.q_funcs, observations, actions).amin(0)
        values = modules.value_func(observations)
        imitated = imitation_batch(batch)
        advantage = q - values.detach() if imitated is batch else self._advantage(imitated)
        config = self._config
        weight = advantage_weights(
            advantage, 1.0 / config.lam, config.max_weight, config.weight_ess
        )
        actor_loss = self.weighted_imitation_loss(imitated, weight)
        actor_loss = self.minimize(actor_loss, modules.actor_optim)

        rule = self.rule_at(batch)
        with torch.no_grad():
            expected = self.compute_expected_values(observations, policy_input(batch), rule)
        value_loss = self.minimize((expected - values).square().mean(), modules.value_optim)

        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._config.tau)
        polyak_update(modules.targ_value_func, modules.value_func, self._config.tau)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "value_loss": value_loss}


@dataclasses.dataclass()
class _AWACArguments(AWACConfig[Any], PolicyArguments):
    """What `AWAC(...)` takes."""


class AWAC(PolicyAlgo[AWACImpl, AWACConfig[TPolicy]], name="spin_d3rlpy_awac"):
    """AWAC with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = AWACConfig
    impl_class = AWACImpl
    _acts_in_updates = True

    @takes(_AWACArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config, size = self._config, cast_flat_shape(observation_shape)
        factory, values = config.critic_encoder_factory, config.value_encoder_factory
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_actor_optim(policy)
        q_funcs = create_critic(config, factory, observation_shape, self._device)
        value_func = ValueFunction(size, values).to(self._device)
        targ_value_func = ValueFunction(size, values).to(self._device)
        hard_sync(targ_value_func, value_func)
        modules = AWACModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=create_critic(config, factory, observation_shape, self._device),
            critic_optim=create_critic_optim(self, q_funcs),
            value_func=value_func,
            targ_value_func=targ_value_func,
            value_optim=create_critic_optim(self, value_func),
        )
        self._impl = self.impl_class(observation_shape, modules, config, self._device)
