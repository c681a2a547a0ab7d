"""DecQN and its offline variants: factored Q-learning without a policy gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.preprocessing import ObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import Shape
from torch import nn
from torch.nn.functional import smooth_l1_loss

from spin_d3rlpy.algos.actor_critic import (
    CriticConfig,
    CriticImpl,
    CriticModules,
    create_critic,
)
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.config import encoder_field
from spin_d3rlpy.algos.impl import best_choices
from spin_d3rlpy.asm.rules import Rule, product_part
from spin_d3rlpy.critics.base import ValueFunction, create_encoder, expectile_loss
from spin_d3rlpy.critics.factored import Decomposition, FactoredCritic, combine_slots
from spin_d3rlpy.data.buffer.batches import imitation_batch
from spin_d3rlpy.data.scalers import standardized_states
from spin_d3rlpy.policies import FactoredPolicy
from spin_d3rlpy.policies.base import keep_supported
from spin_d3rlpy.training.averages import polyak_update


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

    Args:
        learning_rate: of all networks, before `lr_schedule`.
        optim_factory: d3rlpy's factory of the optimizer.
        encoder_factory: d3rlpy's factory of the encoders of observations.
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

    def choose(
        self, observations: Any, utilities: torch.Tensor, rule: Rule | None = None
    ) -> torch.Tensor:
        """Returns the actions `(B, N)` that are best by utilities `(B, S)` and keep a rule."""
        return best_choices(self._slot_layout, self._slot_layout.split(utilities), rule)

    def compute_next_values(self, observations: Any, rule: Rule | None = None) -> torch.Tensor:
        """Returns bootstrap values `(B,)` by double Q-learning, of actions that keep a rule."""
        online = self._modules.q_funcs.utilities(observations).mean(0)
        target = self._modules.targ_q_funcs.utilities(observations).mean(0)
        chosen = self._slot_layout.gather(target, self.choose(observations, online, rule))
        return combine_slots(chosen, self._config.decomposition)

    def compute_loss(self, batch: TorchMiniBatch, utilities: torch.Tensor) -> torch.Tensor:
        """Huber loss of utilities `(E, B, S)`, averaged over rows and summed over the ensemble."""
        rule = self.rule_at_next(batch)
        with torch.no_grad():
            y = self.bootstrap(batch, self.compute_next_values(batch.next_observations, rule))
        values = self._modules.q_funcs.values(self._slot_layout, utilities, batch.actions)
        return smooth_l1_loss(values, y.expand_as(values)) * len(values)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        utilities = self._modules.q_funcs.utilities(batch.observations)
        loss = self.minimize(self.compute_loss(batch, utilities), self._modules.optim)
        polyak_update(self._modules.targ_q_funcs, self._modules.q_funcs, self._config.tau)
        return {"loss": loss}

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self.choose(x, self._modules.q_funcs.utilities(x).mean(0), self.rule_and(extra))

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self.inner_predict_best_action(x, extra)

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        return self._modules.optim.optim


class DecQN(MultiDiscreteAlgo[DecQNImpl, DecQNConfig], name="spin_decqn"):
    """DecQN, for online training and (as a baseline that ignores the support) offline."""

    config_class: type[DecQNConfig] = DecQNConfig
    impl_class: type[DecQNImpl] = DecQNImpl
    _acts_in_updates = True

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        q_funcs = self._create_critic(observation_shape)
        modules = DecQNModules(
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(observation_shape),
            optim=self.create_optim_of(q_funcs),
        )
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)

    def _create_critic(self, shape: Shape) -> FactoredCritic:
        return create_critic(self._config, self._config.encoder_factory, shape, self._device)

    def create_optim_of(self, network: nn.Module) -> OptimizerWrapper:
        """Returns an optimizer of one network."""
        config, modules = self._config, network.named_modules()
        return self.create_optim(config.optim_factory, modules, config.learning_rate)


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
        everything = self._slot_layout.split(utilities).logsumexp(-1)  # (E, B, N)
        actions = batch.actions.expand(len(utilities), *batch.actions.shape)
        chosen = self._slot_layout.gather(utilities, actions)  # (E, B, N)
        penalty = (everything - chosen).mean((1, 2)).sum()
        return super().compute_loss(batch, utilities) + self._config.alpha * penalty


class DecQNCQL(DecQN, name="spin_decqn_cql"):
    """DecQN with conservative utilities, for offline training."""

    config_class = DecQNCQLConfig
    impl_class = DecQNCQLImpl


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
        return self._slot_layout.split(logits).log_softmax(-1)

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


class ImitatingDecQN(DecQN):
    """Builds the ensembles and the policy."""

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_optim_of(policy)
        q_funcs = self._create_critic(observation_shape)
        modules = ImitatingDecQNModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(observation_shape),
            optim=self.create_optim_of(q_funcs),
        )
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)

    def create_policy(self, observation_shape: Shape) -> FactoredPolicy:
        """Returns a new policy that imitates the data."""
        shape = cast_flat_shape(observation_shape)
        encoder: Any = create_encoder(self._config.encoder_factory, shape)
        return FactoredPolicy(shape, encoder, self._nvec).to(self._device)


@dataclasses.dataclass()
class DecQNBCQConfig(ImitatingDecQNConfig):
    r"""DecQN-BCQ: maxima in targets and acting are over supported choices (Beeson et al., 2024).

    .. math::

        \mathcal{S}_i(s) = \{ k : \pi_i(k|s) \ge \epsilon \max_j \pi_i(j|s) \}

    Args:
        action_flexibility: epsilon, least probability relative to the slot's most likely choice;
            the published code's default.
    """

    action_flexibility: float = 0.5


class DecQNBCQImpl(ImitatingDecQNImpl):
    """The update of DecQN-BCQ."""

    _config: DecQNBCQConfig

    def choose(
        self, observations: Any, utilities: torch.Tensor, rule: Rule | None = None
    ) -> torch.Tensor:
        logits = self._modules.policy(observations)
        share = self._config.action_flexibility
        supported = keep_supported(self._slot_layout, utilities, logits, share)
        return best_choices(
            self._slot_layout, supported, rule, otherwise=self._slot_layout.split(logits)
        )


class DecQNBCQ(ImitatingDecQN, name="spin_decqn_bcq"):
    """DecQN with batch constraints, for offline training."""

    config_class = DecQNBCQConfig
    impl_class = DecQNBCQImpl


@dataclasses.dataclass()
class DecQNOneStepConfig(ImitatingDecQNConfig):
    r"""DecQN-OneStep: values of the behavior policy, improved upon once, in acting.

    .. math::

        y = r + \gamma (1 - d)\, \mathbb{E}_{a' \sim \pi} \bar Q(s', a'), \qquad
        a_i = \operatorname{argmax}_k U_i(s, k) / \lambda + \log \pi_i(k|s)

    with the behavior-cloned :math:`\pi`. The expectation is exact, a sum of per-slot expectations;
    of rules it knows only what they forbid a slot whatever the others choose.

    References:
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.
        * Brandfonbrener et al., Offline RL Without Off-Policy Evaluation, 2021.

    Args:
        lam: lambda; larger is closer to imitation. The source tunes it.
    """

    lam: float = 1.0


class DecQNOneStepImpl(ImitatingDecQNImpl):
    """The update of DecQN-OneStep."""

    _config: DecQNOneStepConfig

    def choose(
        self, observations: Any, utilities: torch.Tensor, rule: Rule | None = None
    ) -> torch.Tensor:
        log_probs = self.log_probs(observations)
        return best_choices(
            self._slot_layout,
            self._slot_layout.split(utilities) / self._config.lam + log_probs,
            rule,
        )

    def compute_next_values(self, observations: Any, rule: Rule | None = None) -> torch.Tensor:
        utilities = self._modules.targ_q_funcs.utilities(observations).mean(0)
        log_probs = product_part(rule, self.log_probs(observations))
        probs = log_probs.softmax(-1)
        slots = (probs * self._slot_layout.split(utilities, fill=0.0)).sum(-1)
        return combine_slots(slots, self._config.decomposition)


class DecQNOneStep(ImitatingDecQN, name="spin_decqn_one_step"):
    """DecQN with a single step of policy improvement, for offline training."""

    config_class = DecQNOneStepConfig
    impl_class = DecQNOneStepImpl


@dataclasses.dataclass()
class DecQNIQLConfig(DecQNOneStepConfig):
    r"""DecQN-IQL: a state value by expectile regression instead of a maximum (Beeson et al., 2024).

    .. math::

        L_V = \mathbb{E} \big[ |\tau - \mathbb{1}(u < 0)| \, u^2 \big], \quad
            u = \bar Q(s, a) - V(s), \qquad
        y = r + \gamma (1 - d) V(s')

    with :math:`\bar Q` the target ensemble's mean; V is updated first. The loss is IQL's, not the
    published code's Huber loss (docs/explanation/differences.md). Actions are
    :math:`\operatorname{argmax}_k U_i(s, k) / \lambda + \log \pi_i(k|s)` with the
    behavior-cloned policy.

    Args:
        expectile: tau of the expectile regression.
    """

    expectile: float = 0.8


@dataclasses.dataclass(frozen=True)
class DecQNIQLModules(ImitatingDecQNModules):
    """Networks and optimizers of DecQN-IQL."""

    value_func: ValueFunction
    value_optim: OptimizerWrapper


class DecQNIQLImpl(DecQNOneStepImpl):
    """The update of DecQN-IQL."""

    _modules: DecQNIQLModules
    _config: DecQNIQLConfig

    def compute_next_values(self, observations: Any, rule: Rule | None = None) -> torch.Tensor:
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


class DecQNIQL(ImitatingDecQN, name="spin_decqn_iql"):
    """DecQN with expectile values, for offline training."""

    config_class = DecQNIQLConfig
    impl_class = DecQNIQLImpl

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        shape = cast_flat_shape(observation_shape)
        value_func = ValueFunction(shape, self._config.encoder_factory).to(self._device)
        value_optim = self.create_optim_of(value_func)
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_optim_of(policy)
        q_funcs = self._create_critic(observation_shape)
        modules = DecQNIQLModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(observation_shape),
            optim=self.create_optim_of(q_funcs),
            value_func=value_func,
            value_optim=value_optim,
        )
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)
