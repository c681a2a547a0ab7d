"""Probabilities of whole actions and of their parts: of who logged them, and of a policy.

Everything here takes observations `(B, obs)` as they are in the dataset, without scaling, and
returns log-probabilities as float64 arrays. `-inf` is a probability of 0.

Where a dataset has masks, only probabilities of what they allow are comparable: `masked(masks)`
gives them, renormalized slot by slot. Slots are chosen one after the other, each by its
probabilities in view of those before it, as when actions are sampled with masks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.algos.impl import PolicyImpl
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.asm.conditions import as_mask, require_a_choice
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.sampling import in_parts, log_prob, sample, slot_log_probs
from spin_d3rlpy.data.buffer.masks import forbidden_choices
from spin_d3rlpy.data.scalers import scaler_from_dict
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.images import n_numbers, of_numbers
from spin_d3rlpy.nvec import SlotLayout, as_choices
from spin_d3rlpy.policies.base import IndependentPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.joint import JointPolicy

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Masks = NDArray[np.bool_]
Predict = Callable[[NDArray[Any]], NDArray[Any]]

_ROWS_AT_ONCE = 4096


@runtime_checkable
class ActionProbabilities(Protocol):
    """How likely a policy's actions are; write these two methods for a policy of your own."""

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B,)` of whole actions `(B, N)`."""

    def sample(self, observations: NDArray[Any]) -> Actions:
        """One action for each state, `(B, N)`."""


@runtime_checkable
class SlotProbabilities(Protocol):
    """What estimates with a reward for each slot need in addition."""

    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of each slot's choice, whatever the others choose."""

    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of the choices of slots 0 to i together."""


@runtime_checkable
class MaskedProbabilities(Protocol):
    """What estimates from a log with masks need in addition."""

    def masked(self, masks: Masks) -> ActionProbabilities:
        """Returns the probabilities, in states with these masks, of what they allow.

        A policy that keeps to the masks without being told returns itself.

        Args:
            masks: `(B, N, K)`. The result is for these B states only, in this order.
        """


def with_masks(who: ActionProbabilities, masks: Masks | None) -> ActionProbabilities:
    """Returns probabilities of what masks `(B, N, K)` allow, the same ones if there are none.

    Raises:
        TypeError: there are masks, and the object has no method `masked`.
    """
    if masks is None:
        return who
    if not isinstance(who, MaskedProbabilities):
        raise TypeError(
            f"The log has masks of what may be chosen, and {type(who).__name__} has no method "
            "masked(masks), which returns its probabilities of what they allow. Add it; if your "
            "object keeps to the masks already, it returns self."
        )
    return who.masked(masks)


@runtime_checkable
class ActsByMasks(Protocol):
    """What acts with and without masks, such as an algorithm."""

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        """Actions `(B, N)` for observations `(B, obs)`."""

    def predict_masked(self, x: NDArray[Any], masks: Masks) -> NDArray[Any]:
        """Actions `(B, N)` that masks `(B, N, K)` allow."""


class BehaviorProbabilities:
    """Probabilities of logged actions, by an Action Structure Model.

    Args:
        asm: a model that was pre-trained on the log with `masking="any_order"`. It stays on
            its device.
        n_orders: orders of slots over which `log_prob` averages, see `asm.log_prob`.
    """

    def __init__(self, asm: ActionStructureModel, n_orders: int = 8) -> None:
        self.asm = asm
        self.n_orders = n_orders
        encoded = asm.observation_scaler
        size = n_numbers(asm.observation_size)
        self._scaler = None if encoded is None else scaler_from_dict(encoded, size)
        self._masks: torch.Tensor | None = None

    def masked(self, masks: Masks) -> Self:
        """Returns the probabilities of what masks `(B, N, K)` allow, for these B states.

        The model need not know the masks: probability that it gives to forbidden choices goes to
        the others of the slot.

        Raises:
            ValueError: masks of another shape or type.
            NoAllowedChoiceError: a mask leaves a slot without a choice.
        """
        kept = copy.copy(self)
        kept._masks = _as_masks(masks, self.asm.slot_layout)
        return kept

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        inputs, chosen, masks = self._rows(observations, actions)
        return _as_floats(log_prob(self.asm, inputs, chosen, self.n_orders, masks))

    @torch.no_grad()
    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of each slot's choice while all other slots are masked."""
        asm = self.asm

        def score(
            x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            logits = asm(x, asm.mask_ids.expand(len(x), -1))
            return _chosen(asm.slot_layout, logits, chosen, masks)

        return _as_floats(in_parts(asm, score, *self._rows(observations, actions)))

    @torch.no_grad()
    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        asm = self.asm

        def score(
            x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            return slot_log_probs(asm, x, chosen, range(len(asm.nvec)), masks).cumsum(1)

        return _as_floats(in_parts(asm, score, *self._rows(observations, actions)))

    def sample(self, observations: NDArray[Any]) -> Actions:
        sampled = sample(self.asm, self._inputs(observations), allowed=self._masks)[0]
        return np.asarray(sampled.cpu().numpy(), np.int64)

    def _rows(
        self, observations: NDArray[Any], actions: NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns the model's inputs, actions and masks."""
        inputs = self._inputs(observations)
        chosen = _logged(observations, actions, self.asm.nvec)
        return inputs, torch.as_tensor(chosen, device=self.asm.device), self._masks

    def _inputs(self, observations: NDArray[Any]) -> torch.Tensor:
        size = self.asm.observation_size
        if observations.ndim != 2 or observations.shape[1] != size:
            raise NvecMismatchError(
                f"Expected observations of {size} features, for which the structure model was "
                f"pre-trained, got shape {observations.shape}. Pass a model of the same data."
            )
        _require_states_of(self._masks, observations)
        inputs = torch.as_tensor(observations, dtype=torch.float32, device=self.asm.device)
        if self._scaler is None:
            return inputs
        return of_numbers(self.asm.observation_size, self._scaler.transform)(inputs)


class SampledPolicy:
    """A trained algorithm that draws its actions (`sample_action`) from its policy's distribution.

    Args:
        algo: a built algorithm with a policy, of one stage or two.

    Raises:
        TypeError: it has none whose actions have probabilities: `DecQN` and its variants, IDQL and
            others that choose among samples, those with `rules`, and structure models that choose
            the surest slot first.
    """

    def __init__(self, algo: PolicyAlgo[Any, Any]) -> None:
        impl: Any = algo.impl
        known = PolicyImpl.inner_sample_action
        draws = isinstance(impl, PolicyImpl) and type(impl).inner_sample_action is known
        if not draws:
            raise TypeError(
                f"Expected a built algorithm whose sampled actions have probabilities, got "
                f"{type(algo).__name__}. Evaluate what it does instead: "
                "GreedyPolicy(algo)."
            )
        if impl.rule is not None:
            raise TypeError(
                "Expected an algorithm without rules: how likely they make its sampled actions is "
                "not known. Evaluate its greedy actions: GreedyPolicy(algo)."
            )
        policy = impl.acting_policy
        if isinstance(policy, JointPolicy) and policy.order != "slots":
            raise TypeError(
                "Expected a policy that draws its slots in their order (order='slots'), got one of "
                f"order {policy.order!r}: how likely it makes an action is not known. Evaluate its "
                "greedy actions: GreedyPolicy(algo)."
            )
        self._algo = algo
        self._policy = policy
        self._masks: torch.Tensor | None = None

    def masked(self, masks: Masks) -> Self:
        """Returns the probabilities by which `predict_masked(x, masks, sample=True)` draws.

        Args:
            masks: `(B, N, K)`, of the B states that the result is for.

        Raises:
            TypeError: the policy is of another kind than those of this package: its probabilities
                with masks are not known.
            ValueError: masks of another shape or type.
            NoAllowedChoiceError: a mask leaves a slot without a choice.
        """
        policy = self._policy
        if not isinstance(policy, IndependentPolicy | SlotOrderPolicy | JointPolicy):
            raise TypeError(
                "Expected a policy of independent slots or one that chooses slot after slot, whose "
                f"probabilities with masks are known, got a {type(policy).__name__}. Evaluate its "
                "greedy actions: GreedyPolicy(algo)."
            )
        kept = copy.copy(self)
        kept._masks = _as_masks(masks, policy.slot_layout)
        return kept

    @torch.no_grad()
    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        def score(
            x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            if masks is None:
                whole: torch.Tensor = self._policy.log_prob(x, chosen)
                return whole
            return self._by_slot(x, chosen, masks).sum(1)

        return self._in_parts(score, observations, actions)

    @torch.no_grad()
    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of each slot's choice.

        Raises:
            TypeError: slots depend on each other, so that a slot's own probability is a sum over
                all choices of the others.
        """
        policy = self._independent(self._policy)

        def score(
            x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            return _chosen(policy.slot_layout, policy(x), chosen, masks)

        return self._in_parts(score, observations, actions)

    @torch.no_grad()
    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of the choices of slots 0 to i together.

        Raises:
            TypeError: the policy is of another kind than those of this package.
        """

        def score(
            x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            return self._by_slot(x, chosen, masks).cumsum(1)

        return self._in_parts(score, observations, actions)

    def _by_slot(
        self, x: torch.Tensor, chosen: torch.Tensor, masks: torch.Tensor | None
    ) -> torch.Tensor:
        """Log-probability `(B, N)` of each slot's choice in view of those of earlier slots."""
        policy = self._policy
        if isinstance(policy, JointPolicy):
            return slot_log_probs(policy.asm, x, chosen, range(chosen.shape[1]), masks)
        if isinstance(policy, SlotOrderPolicy):
            return _chosen(policy.slot_layout, policy(x, chosen), chosen, masks)
        return _chosen(policy.slot_layout, self._independent(policy)(x), chosen, masks)

    def _in_parts(
        self,
        score: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor],
        observations: NDArray[Any],
        actions: NDArray[Any],
    ) -> Floats:
        """Computes something row by row, from the networks' inputs, actions and masks."""
        _require_states_of(self._masks, observations)
        assert self._algo.impl is not None
        assert self._algo.config.nvec is not None
        actions = _logged(observations, actions, self._algo.config.nvec)
        self._algo.impl.modules.set_eval()  # after training they still drop out
        parts = []
        for start in range(0, max(len(observations), 1), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            inputs = self._algo.network_input(observations[rows])
            chosen = torch.as_tensor(actions[rows], device=inputs.device).long()
            masks = None if self._masks is None else self._masks[rows].to(inputs.device)
            parts.append(score(inputs, chosen, masks))
        return _as_floats(torch.cat(parts))

    @staticmethod
    def _independent(policy: Policy) -> IndependentPolicy:
        if not isinstance(policy, IndependentPolicy):
            raise TypeError(
                f"Expected a policy of independent slots, got {type(policy).__name__}, which does "
                "not know a slot's probability without the others' choices. Use the estimator "
                "'standard' or, for a policy that chooses slot after slot, 'cascade'."
            )
        return policy

    def sample(self, observations: NDArray[Any]) -> Actions:
        if self._masks is None:
            return np.asarray(self._algo.sample_action(observations), np.int64)
        masks = self._masks.cpu().numpy()
        return np.asarray(self._algo.predict_masked(observations, masks, sample=True), np.int64)


class GreedyPolicy:
    """A deterministic policy: an algorithm's `predict`, or a function of your own.

    Only logged actions that equal its own tell of it. With `soften` the policy evaluated is a
    mixture: it decides a share `1 - soften` of the time, and otherwise the one who logged does.
    This has support wherever the log has, and is what a careful first trial would do.

    Args:
        policy: an algorithm, or a function of observations `(B, obs)` that returns actions
            `(B, N)`. Where the log has masks, an algorithm keeps to them (`predict_masked`), and a
            function must do so without being told.
        soften: share of decisions left to the log's behavior, from 0 up to below 1.
        behavior: whose behavior; needed if `soften` is above 0.

    Raises:
        ValueError: `soften` is out of range, or above 0 without `behavior`.
    """

    def __init__(
        self,
        policy: Predict | ActsByMasks,
        soften: float = 0.0,
        behavior: ActionProbabilities | None = None,
    ) -> None:
        if not 0.0 <= soften < 1.0 or (soften > 0.0 and behavior is None):
            raise ValueError(
                "Expected soften from 0 up to below 1, and behavior= if it is above 0, got "
                f"soften={soften} and behavior={behavior}."
            )
        self.policy = policy
        self.soften = soften
        self.behavior = behavior
        self._masks: Masks | None = None

    def masked(self, masks: Masks) -> Self:
        """Returns the probabilities of what the policy decides with masks `(B, N, K)`.

        They are for these B states. The behavior of a mixture keeps to the masks, too.

        Raises:
            TypeError: the behavior has no method `masked`.
        """
        kept = copy.copy(self)
        kept._masks = np.asarray(masks, bool)
        if self.behavior is not None:
            kept.behavior = with_masks(self.behavior, kept._masks)
        return kept

    def predict(self, observations: NDArray[Any]) -> Actions:
        """Returns what the policy itself decides, `(B, N)`, by the masks if there are any.

        Raises:
            InvalidActionSpaceError: a function decides what a mask forbids, or returns no whole
                actions, one for each observation.
            InvalidDatasetError: the observations are not of the states of the masks.
        """
        policy, masks = self.policy, self._masks
        _require_states_of(masks, observations)
        if isinstance(policy, ActsByMasks):
            chosen = (
                policy.predict(observations)
                if masks is None
                else policy.predict_masked(observations, masks)
            )
            return np.asarray(chosen, np.int64)
        chosen = as_choices(policy(observations), (len(observations),), "the policy's function")
        if masks is not None:
            _require_allowed(chosen, masks)
        return chosen

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = np.asarray(self._same(observations, actions).all(1))
        return self._mixed(same, "log_prob", observations, actions)

    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = self._same(observations, actions)
        return self._mixed(same, "slot_log_prob", observations, actions)

    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = np.logical_and.accumulate(self._same(observations, actions), axis=1)
        return self._mixed(same, "prefix_log_prob", observations, actions)

    def _same(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of logged choices `(B, N)` are its own."""
        chosen = as_choices(self.predict(observations), actions.shape, "the policy")
        same: NDArray[np.bool_] = chosen == actions
        return same

    def sample(self, observations: NDArray[Any]) -> Actions:
        chosen = self.predict(observations)
        if self.behavior is None or self.soften == 0.0:
            return chosen
        # torch's random numbers, so that one seed rules the training of an evaluation as well.
        is_logged = torch.rand(len(chosen)).numpy() < self.soften
        return np.where(is_logged[:, None], self.behavior.sample(observations), chosen)

    def _mixed(
        self,
        same: NDArray[np.bool_],
        method: str,
        observations: NDArray[Any],
        actions: NDArray[Any],
    ) -> Floats:
        shares = (1.0 - self.soften) * same
        if self.behavior is not None and self.soften > 0.0:
            shares = shares + self.soften * np.exp(
                getattr(self.behavior, method)(observations, actions)
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(shares))


def _chosen(
    slot_layout: SlotLayout,
    logits: torch.Tensor,
    actions: torch.Tensor,
    masks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probabilities `(B, N)` of actions `(B, N)`, by flat logits `(B, S)` and masks."""
    split = slot_layout.split(logits)
    if masks is not None:
        split = split.masked_fill(~masks, -torch.inf)
    log_p: torch.Tensor = split.log_softmax(-1)
    return log_p.gather(2, actions[..., None]).squeeze(2)


def _logged(observations: NDArray[Any], actions: Any, nvec: Sequence[int]) -> Actions:
    """Returns logged actions `(B, N)`; InvalidActionSpaceError if they are no choices of these."""
    return as_choices(actions, (len(observations), len(nvec)), "the log", nvec)


def _as_masks(masks: Masks, slot_layout: SlotLayout) -> torch.Tensor:
    """Returns masks `(B, N, K)`, checked, on the layout's device."""
    checked = as_mask(masks, len(masks), slot_layout, slot_layout.padding.device)
    require_a_choice(checked & ~slot_layout.padding)
    return checked


def _require_states_of(masks: torch.Tensor | Masks | None, observations: NDArray[Any]) -> None:
    if masks is not None and len(masks) != len(observations):
        raise InvalidDatasetError(
            f"Expected the {len(masks)} states whose masks were given to masked(), in their order, "
            f"got {len(observations)}. Call masked() with the masks of these states."
        )


def _require_allowed(actions: Actions, masks: Masks) -> None:
    wrong = forbidden_choices(masks, actions)
    if wrong.any():
        row, slot = np.argwhere(wrong)[0]
        raise InvalidActionSpaceError(
            f"The evaluated function decides {actions[row, slot]} for slot {slot} in a state whose "
            f"mask forbids it, and something forbidden in {wrong.any(1).mean():.1%} of "
            f"{len(wrong)} states. Expected a policy that can be carried out: give the algorithm "
            "itself, which keeps to masks, GreedyPolicy(algo), or correct the function."
        )


def _as_floats(x: torch.Tensor) -> Floats:
    return np.asarray(x.detach().double().cpu().numpy())
