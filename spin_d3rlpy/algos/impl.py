"""Parts of algorithms: configs, networks, acting, and an update without host syncs."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from inspect import signature
from typing import Any, cast

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import Modules, TorchMiniBatch, eval_api, train_api
from d3rlpy.types import Shape, TorchObservation

from spin_d3rlpy._compat import advance_schedule, step_without_schedule
from spin_d3rlpy.algos.config import MultiDiscreteConfig, PolicyConfig
from spin_d3rlpy.asm.decoding import IndependentConditionals, decode
from spin_d3rlpy.asm.rules import (
    AnyRule,
    RowMask,
    Rule,
    all_in_states,
    both_rules,
    is_in_states,
    sees_state,
)
from spin_d3rlpy.data.buffer.batches import masks_of, next_masks_of, next_states_of, states_of
from spin_d3rlpy.fast.precision import backward
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.feature_cache import policy_input
from spin_d3rlpy.training.averages import WeightAverage

Metrics = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class MultiDiscreteModules(Modules):
    """Networks and optimizers; what SPIN froze stays frozen."""

    def unfreeze(self) -> None:
        super().unfreeze()
        for network in self.get_torch_modules().values():
            if isinstance(network, Policy):
                network.freeze()


def best_choices(
    slot_layout: SlotLayout,
    scores: torch.Tensor,
    rule: Rule | None,
    otherwise: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the best choices `(B, N)` by values `(B, N, K)`, slot by slot if there is a rule.

    The slot that would lose most by another's choice comes first. `otherwise` has scores of choices
    that are taken if no choice with a value, above `-inf`, is allowed.
    """
    values = IndependentConditionals(slot_layout, scores)
    return decode(values, "regret", rule, otherwise=otherwise)


def mask_rule(masks: torch.Tensor | None) -> Rule | None:
    """Returns a dataset's masks `(B, N, K)` as a rule: every slot has a choice in them."""
    return None if masks is None else RowMask(masks, always_possible=True)


class MultiDiscreteImpl(QLearningAlgoImplBase):
    """Base class of the updates, which return tensors so that no step waits for the device."""

    _config: MultiDiscreteConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses an update that `fit` would not call."""
        super().__init_subclass__(**kwargs)
        if "inner_update" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides inner_update, which fit does not call: it would wait "
                "for the device in every step. Override compute_update, which returns the losses "
                "as tensors."
            )

    def __init__(
        self,
        observation_shape: Shape,
        modules: MultiDiscreteModules,
        config: MultiDiscreteConfig,
        device: str,
    ) -> None:
        assert config.nvec is not None
        slot_layout = SlotLayout(config.nvec).to(device)
        super().__init__(observation_shape, slot_layout.max_choices, modules, device)
        self._slot_layout, self._config = slot_layout, config
        self.rule: AnyRule | None = config.rule  # every action keeps it
        self.rule_sees_state = self.rule is not None and sees_state(self.rule)

    def rule_and(self, extra: Rule | None) -> Rule | None:
        """Returns the config's rules and another one, such as masks, as one; None if neither.

        Raises:
            RuntimeError: the config's rules see states, and are not in the other one (`rule_in`).
        """
        if not self.rule_sees_state:
            return both_rules(cast(Rule | None, self.rule), extra)
        if not is_in_states(extra):
            raise RuntimeError(
                "A rule sees the states, unscaled, and was not told them. Expected actions from "
                "the algorithm (predict, sample_action, act) or from impl.act(..., states=...)."
            )
        return extra

    def rule_in(self, states: torch.Tensor, extra: AnyRule | None = None) -> Rule | None:
        """Returns the config's rules and another one in unscaled states `(B, obs)`, as one."""
        return all_in_states([self.rule, extra], states)

    def rule_at(self, batch: TorchMiniBatch) -> Rule | None:
        """Returns what actions in a batch's states keep: rules and masks; None if all may be."""
        return self.rule_in(states_of(batch), mask_rule(masks_of(batch)))

    def rule_at_next(self, batch: TorchMiniBatch) -> Rule | None:
        """Returns the same for the next states."""
        return self.rule_in(next_states_of(batch), mask_rule(next_masks_of(batch)))

    @eval_api
    def act(
        self,
        x: TorchObservation,
        extra: AnyRule | None = None,
        sample: bool = False,
        states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns greedy or sampled actions `(B, N)` for the networks' input.

        What one call keeps is its argument, so that calls in several threads do not mix.

        Args:
            x: scaled observations `(B, obs)`.
            extra: what actions keep in addition to the config's rules.
            sample: draw them; by default they are greedy.
            states: `(B, obs)` as rules see them, unscaled; those that see any need it.
        """
        if states is not None:  # before, `rule_and` would not know them
            extra = all_in_states([self.rule if self.rule_sees_state else None, extra], states)
        choose: Any = self.inner_sample_action if sample else self.inner_predict_best_action
        # An algorithm of another package may know no rules.
        actions: torch.Tensor = choose(x) if extra is None else choose(x, extra)
        return actions

    def require_rules(self) -> None:
        """Raises ValueError if actions are chosen without rules, so that masks cannot be kept."""
        for name in ("inner_predict_best_action", "inner_sample_action"):
            if "extra" not in signature(getattr(self, name)).parameters:
                raise ValueError(
                    f"{type(self).__name__}.{name} chooses without rules, so it cannot keep to "
                    "masks. Expected one that takes extra= (as all of this package do), or no "
                    "masks."
                )
        for network in self.modules.get_torch_modules().values():
            if isinstance(network, Policy) and "rule" not in signature(network.decode).parameters:
                raise ValueError(
                    f"A {type(network).__name__} chooses without rules, so it cannot keep to "
                    "masks. Expected a policy whose decode takes rule= (as all of this package "
                    "do), or no masks."
                )

    def predict_allowed(
        self, x: TorchObservation, masks: torch.Tensor | None, states: torch.Tensor
    ) -> torch.Tensor:
        """Returns greedy actions `(B, N)` by masks `(B, N, K)`, if any; what exported files do."""
        return self.act(x, None if masks is None else RowMask(masks), states=states)

    @property
    def n_tokens(self) -> int:
        """Rows of matrix products when it acts on one observation."""
        return 1

    def bootstrap(
        self,
        batch: TorchMiniBatch,
        next_values: torch.Tensor,
        gamma: torch.Tensor | float | None = None,
        rewards: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns `r + gamma^n (1 - terminal) next_values` for next values `(..., B)`.

        Args:
            batch: transitions.
            next_values: of their next states.
            gamma: one discount, or one of each row of next values, `(..., 1)`; by default the
                config's.
            rewards: `(..., B)`, by default the batch's.
        """
        gamma = self._config.gamma if gamma is None else gamma
        discount = gamma ** batch.intervals.squeeze(-1)
        not_over = 1.0 - batch.terminals.squeeze(-1)
        rewards = batch.rewards.squeeze(-1) if rewards is None else rewards
        return rewards + discount * not_over * next_values

    def minimize(self, loss: torch.Tensor, optim: OptimizerWrapper | None) -> torch.Tensor:
        """Does one step of `optim` down the gradient of `loss`, and returns that detached."""
        assert optim is not None
        # d3rlpy's wrapper would fill gradients with zeros, and backward would add to these.
        optim.optim.zero_grad(set_to_none=True)
        backward(loss)
        step_without_schedule(optim)
        return loss.detach()

    @abstractmethod
    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """Does one gradient step and returns scalar metrics, still on the device.

        With `compile_graph` this is recorded, then replayed: `grad_step` is a number of the
        recording, and nothing may depend on values that only the device knows.
        """

    @train_api
    def update_without_sync(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """`compute_update` in training mode."""
        return self.compute_update(batch, grad_step)

    @property
    def optimizers(self) -> list[OptimizerWrapper]:
        """All optimizers."""
        return [v for v in vars(self.modules).values() if isinstance(v, OptimizerWrapper)]

    def after_update(self, grad_step: int) -> None:
        """Does what follows every step, recorded or not: d3rlpy's learning-rate schedulers move."""
        for optim in self.optimizers:
            advance_schedule(optim)

    def inner_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, float]:
        metrics = self.compute_update(batch, grad_step)
        self.after_update(grad_step)
        return {k: v.item() for k, v in metrics.items()}


@dataclasses.dataclass(frozen=True)
class PolicyModules(MultiDiscreteModules):
    """A policy, its optimizer (None if nothing is trained), optionally an average of weights."""

    policy: Policy
    actor_optim: OptimizerWrapper | None
    average_policy: Policy | None = dataclasses.field(default=None, kw_only=True)


class PolicyImpl(MultiDiscreteImpl):
    """Acting by a policy."""

    _modules: PolicyModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: PolicyModules,
        config: PolicyConfig[Any],
        device: str,
    ) -> None:
        self._average: WeightAverage | None = None
        if config.ema_decay and modules.actor_optim is not None:
            self._average = WeightAverage(modules.policy, config.ema_decay)
            average: Any = self._average.average
            modules = dataclasses.replace(modules, average_policy=average)
        super().__init__(observation_shape, modules, config, device)

    @property
    def acting_policy(self) -> Policy:
        """The trained policy or the average of its weights."""
        return self._modules.average_policy or self._modules.policy

    def sync_average(self) -> None:
        """Sets the average to the policy's weights."""
        if self._average is not None:
            self._average.sync()

    def copy_policy_from(self, impl: QLearningAlgoImplBase) -> None:
        """Copies another algorithm's policy, also its average and whether it is pre-trained.

        The policies act alike afterwards: without an average here, the other's average is copied.

        Raises:
            ValueError: the other policy is of another kind or size.
        """
        if not isinstance(impl, PolicyImpl) or type(impl.policy) is not type(self.policy):
            raise ValueError(
                f"Expected an algorithm with a {type(self.policy).__name__} as policy, got "
                f"{type(getattr(impl, 'policy', impl)).__name__}."
            )
        trained = impl.acting_policy if self._average is None else impl.policy
        try:
            self.policy.load_state_dict(trained.state_dict())
        except RuntimeError as error:
            raise ValueError(f"The other policy has other sizes: {error}") from error
        if self._average is not None:
            self._average.average.load_state_dict(impl.acting_policy.state_dict())

    def after_update(self, grad_step: int) -> None:
        super().after_update(grad_step)
        if self._average is not None:
            self._average.update(grad_step)

    @property
    def n_tokens(self) -> int:
        return self._modules.policy.n_tokens

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self.acting_policy.greedy(x, self.rule_and(extra))

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self.acting_policy.sample(x, self.rule_and(extra))

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("Behavior cloning learns no values.")

    def log_prob(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Log-probability `(B,)` of the batch's actions under the trained policy."""
        return self._modules.policy.log_prob(policy_input(batch), batch.actions)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """The trained policy."""
        return self._modules.policy

    @property
    def policy_optim(self) -> torch.optim.Optimizer:
        """The policy's optimizer; a ValueError if nothing of the policy is trained."""
        if self._modules.actor_optim is None:
            raise ValueError(f"Nothing of a {type(self.policy).__name__} is trained.")
        return self._modules.actor_optim.optim
