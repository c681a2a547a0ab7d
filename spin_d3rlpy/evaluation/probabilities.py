"""Probabilities of whole actions and of their parts: of who logged them, and of a policy.

Everything here takes observations `(B, obs)` as they are in the dataset, without scaling, and
returns log-probabilities as float64 arrays. `-inf` is a probability of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.algos.impl import PolicyImpl
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.sampling import in_parts
from spin_d3rlpy.data.scalers import scaler_from_dict
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.autoregressive import AutoregressivePolicy
from spin_d3rlpy.policies.base import IndependentPolicy, Policy
from spin_d3rlpy.policies.joint import JointPolicy

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
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
        self._scaler = None if encoded is None else scaler_from_dict(encoded, asm.observation_size)

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        inputs = self._inputs(observations)
        return _as_floats(self.asm.log_prob(inputs, actions, self.n_orders))

    @torch.no_grad()
    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of each slot's choice while all other slots are masked."""
        asm = self.asm

        def score(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            return _chosen(asm.layout, asm(x, asm.mask_ids.expand(len(x), -1)), chosen)

        return _as_floats(in_parts(asm, score, *self._both(observations, actions)))

    @torch.no_grad()
    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        def score(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            return _log_prob_by_slot(self.asm, x, chosen).cumsum(1)

        return _as_floats(in_parts(self.asm, score, *self._both(observations, actions)))

    def sample(self, observations: NDArray[Any]) -> Actions:
        sampled = self.asm.sample(self._inputs(observations))[0]
        return np.asarray(sampled.cpu().numpy(), np.int64)

    def _both(
        self, observations: NDArray[Any], actions: NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.as_tensor(actions, device=self.asm.device).long()
        return self._inputs(observations), chosen

    def _inputs(self, observations: NDArray[Any]) -> torch.Tensor:
        size = self.asm.observation_size
        if observations.ndim != 2 or observations.shape[1] != size:
            raise NvecMismatchError(
                f"Expected observations of {size} features, for which the structure model was "
                f"pre-trained, got shape {observations.shape}. Pass a model of the same data."
            )
        inputs = torch.as_tensor(observations, dtype=torch.float32, device=self.asm.device)
        return inputs if self._scaler is None else self._scaler.transform(inputs)


class SampledPolicy:
    """A trained algorithm that draws its actions (`sample_action`) from its policy's distribution.

    Args:
        algo: a built algorithm with a policy, of one stage or two.

    Raises:
        TypeError: it has none whose actions have probabilities: `DecQN` and its variants, IDQL and
            others that choose among samples, and those with `rules`.
    """

    def __init__(self, algo: PolicyAlgo[Any, Any]) -> None:
        impl: Any = algo.impl
        known = PolicyImpl.inner_sample_action
        draws = isinstance(impl, PolicyImpl) and type(impl).inner_sample_action is known
        if not draws:
            raise TypeError(
                f"Expected a built algorithm whose sampled actions have probabilities, got "
                f"{type(algo).__name__}. Evaluate what it does instead: "
                "GreedyPolicy(algo.predict)."
            )
        if impl.rule is not None:
            raise TypeError(
                "Expected an algorithm without rules: how likely they make its sampled actions is "
                "not known. Evaluate its greedy actions: GreedyPolicy(algo.predict)."
            )
        self._algo = algo
        self._policy = impl.acting_policy

    @torch.no_grad()
    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        parts = []
        for rows in _parts(len(observations)):
            inputs = self._algo.network_input(observations[rows])
            chosen = torch.as_tensor(actions[rows], device=inputs.device).long()
            parts.append(self._policy.log_prob(inputs, chosen))
        return _as_floats(torch.cat(parts))

    @torch.no_grad()
    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of each slot's choice.

        Raises:
            TypeError: slots depend on each other, so that a slot's own probability is a sum over
                all choices of the others.
        """
        policy, parts = self._independent(self._policy), []
        for rows in _parts(len(observations)):
            logits = policy(self._algo.network_input(observations[rows]))
            chosen = torch.as_tensor(actions[rows], device=logits.device).long()
            parts.append(_chosen(policy.layout, logits, chosen))
        return _as_floats(torch.cat(parts))

    @torch.no_grad()
    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        """Log-probability `(B, N)` of the choices of slots 0 to i together.

        Raises:
            TypeError: the policy is of another kind than those of this package.
        """
        policy, parts = self._policy, []
        for rows in _parts(len(observations)):
            inputs = self._algo.network_input(observations[rows])
            chosen = torch.as_tensor(actions[rows], device=inputs.device).long()
            if isinstance(policy, JointPolicy):
                per_slot = _log_prob_by_slot(policy.asm, inputs, chosen)
            elif isinstance(policy, AutoregressivePolicy):
                per_slot = _chosen(policy.layout, policy(inputs, chosen), chosen)
            else:
                per_slot = _chosen(policy.layout, self._independent(policy)(inputs), chosen)
            parts.append(per_slot.cumsum(1))
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
        return np.asarray(self._algo.sample_action(observations), np.int64)


class GreedyPolicy:
    """A deterministic policy, such as `algo.predict` or a rule of your own.

    Only logged actions that equal its own tell of it. With `soften` the policy evaluated is a
    mixture: it decides a share `1 - soften` of the time, and otherwise the one who logged does.
    This has support wherever the log has, and is what a careful first trial would do.

    Args:
        predict: observations `(B, obs)` to actions `(B, N)`.
        soften: share of decisions left to the log's behavior, from 0 up to below 1.
        behavior: whose behavior; needed if `soften` is above 0.

    Raises:
        ValueError: `soften` is out of range, or above 0 without `behavior`.
    """

    def __init__(
        self,
        predict: Predict,
        soften: float = 0.0,
        behavior: ActionProbabilities | None = None,
    ) -> None:
        if not 0.0 <= soften < 1.0 or (soften > 0.0 and behavior is None):
            raise ValueError(
                "Expected soften from 0 up to below 1, and behavior= if it is above 0, got "
                f"soften={soften} and behavior={behavior}."
            )
        self.predict = predict
        self.soften = soften
        self.behavior = behavior

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = (self.predict(observations) == actions).all(1)
        return self._mixed(same, "log_prob", observations, actions)

    def slot_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = self.predict(observations) == actions
        return self._mixed(same, "slot_log_prob", observations, actions)

    def prefix_log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Floats:
        same = np.logical_and.accumulate(self.predict(observations) == actions, axis=1)
        return self._mixed(same, "prefix_log_prob", observations, actions)

    def sample(self, observations: NDArray[Any]) -> Actions:
        chosen = np.asarray(self.predict(observations), np.int64)
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


def _parts(n: int) -> list[slice]:
    return [slice(i, i + _ROWS_AT_ONCE) for i in range(0, max(n, 1), _ROWS_AT_ONCE)]


def _chosen(layout: SlotLayout, logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Log-probabilities `(B, N)` of actions `(B, N)` in flat logits `(B, S)`."""
    return layout.split(logits).log_softmax(-1).gather(2, actions[..., None]).squeeze(2)


def _log_prob_by_slot(
    asm: ActionStructureModel, inputs: torch.Tensor, actions: torch.Tensor
) -> torch.Tensor:
    """Log-probability `(B, N)` of each slot's choice in view of those of earlier slots."""
    chain, columns = asm.slot_by_slot(inputs), []
    for slot in range(asm.layout.n_slots):
        choice = actions[:, slot]
        columns.append(chain.logits(slot).log_softmax(-1).gather(1, choice[:, None]))
        chain.choose(slot, choice)
    return torch.cat(columns, dim=1)


def _as_floats(x: torch.Tensor) -> Floats:
    return np.asarray(x.detach().double().cpu().numpy())
