r"""Estimates for slates: decisions of one step, with a reward for each slot.

With :math:`r_i` the reward of slot i, an estimate is the mean over slates of
:math:`\sum_i w_i r_i`. The estimators assume more and more about what a slot's reward depends on:

- `"standard"` (SIPS): on all choices. :math:`w_i = \pi(a|s) / \mu(a|s)`, the same for all slots.
- `"cascade"` (RIPS): on its own choice and those of earlier slots, as when a user reads from the
  top. :math:`w_i = \pi(a_{\le i}|s) / \mu(a_{\le i}|s)`.
- `"independent"` (IIPS): on its own choice only. :math:`w_i = \pi(a_i|s) / \mu(a_i|s)`.

Where the assumption holds, the later ones are far less noisy; where it does not, they are biased.

References:
    * Li et al., Offline Evaluation of Ranking Policies with Click Models, 2018 (IIPS).
    * McInerney et al., Counterfactual Evaluation of Slate Recommendations with Sequential Reward
      Interactions, 2020 (RIPS).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.masks import forbidden_choices
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError, require_one_of
from spin_d3rlpy.evaluation.estimates import Estimate, WeightedGains, summarize
from spin_d3rlpy.evaluation.importance import clip_weights
from spin_d3rlpy.evaluation.probabilities import (
    ActionProbabilities,
    Masks,
    SlotProbabilities,
    with_masks,
)
from spin_d3rlpy.nvec import as_choices

Floats = NDArray[np.float64]
SlateEstimator = Literal["standard", "cascade", "independent"]

_NAMES = {"standard": "SIPS", "cascade": "RIPS", "independent": "IIPS"}


def slate_value(
    observations: NDArray[Any],
    actions: NDArray[Any],
    slot_rewards: NDArray[Any],
    policy: ActionProbabilities,
    behavior: ActionProbabilities,
    *,
    masks: Masks | None = None,
    estimator: SlateEstimator = "cascade",
    self_normalized: bool = True,
    clip: float | None = None,
    level: float = 0.9,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Estimates the sum of a slate's rewards under a policy.

    Args:
        observations: `(n, obs)`, one row for each slate.
        actions: `(n, N)`.
        slot_rewards: `(n, N)`, such as clicks.
        policy: the one to evaluate, see `importance_sampling`.
        behavior: of the log, such as `BehaviorProbabilities(asm)`.
        masks: `(n, N, K)` bool, which choices could be made; probabilities are of these. None: all.
        estimator: see the module.
        self_normalized: divide by the weights' sum in place of n, slot by slot. Without it,
            estimates are unbiased if the log's probabilities are known, and off by the mean weight
            if they are learned.
        clip: largest weight, None for no limit.
        level: of the interval.
        n_bootstrap: number of times that slates are drawn for the interval.
        seed: of these draws.

    Raises:
        ValueError: an argument is out of range.
        TypeError: `policy` or `behavior` does not know what the estimator, or masks, need.
        InvalidActionSpaceError: `actions` are no whole numbers, or no choices of `policy` or
            `behavior`.
        InvalidDatasetError: `actions` and `slot_rewards` have other shapes, or a reward is not a
            finite number, or `masks` do not fit the actions.
    """
    require_one_of("estimator", estimator, SlateEstimator)
    rewards = np.asarray(slot_rewards, np.float64)
    _check_slates(np.shape(observations), np.shape(actions), rewards)
    actions = as_choices(actions, rewards.shape, "the slates")
    if actions.min() < 0:
        raise InvalidActionSpaceError(f"Expected actions from 0, got {actions.min()}.")
    if masks is not None:
        _check_masks(masks, actions)
    policy, behavior = with_masks(policy, masks), with_masks(behavior, masks)
    log_ratios = _log_prob(policy, estimator, observations, actions) - _log_prob(
        behavior, estimator, observations, actions
    )
    with np.errstate(over="ignore"):
        weights, clipped = clip_weights(np.exp(log_ratios), clip)
    data = WeightedGains(weights, rewards, np.zeros(len(rewards)))
    name = f"{'self-normalized ' if self_normalized else ''}{_NAMES[estimator]}"
    return summarize(name, data, self_normalized, level, n_bootstrap, seed, clipped)


def _log_prob(
    who: ActionProbabilities,
    estimator: SlateEstimator,
    observations: NDArray[Any],
    actions: NDArray[Any],
) -> Floats:
    """Returns the log-probabilities that each slot's weight is made of, `(n, N)`."""
    if estimator == "standard":
        whole = who.log_prob(observations, actions)
        return np.repeat(whole[:, None], actions.shape[1], axis=1)
    if not isinstance(who, SlotProbabilities):
        raise TypeError(
            f"Expected an object with slot_log_prob and prefix_log_prob for the estimator "
            f"{estimator!r}, got {type(who).__name__}. Add these methods, or use 'standard'."
        )
    if estimator == "cascade":
        return who.prefix_log_prob(observations, actions)
    return who.slot_log_prob(observations, actions)


def _check_masks(masks: Masks, actions: NDArray[Any]) -> None:
    fits = masks.ndim == 3 and masks.shape[:2] == actions.shape and masks.dtype == bool
    if not fits or masks.shape[2] <= actions.max():
        raise InvalidDatasetError(
            f"Expected masks (n, N, K), bool, with (n, N) = {actions.shape} and K of every choice, "
            f"got {masks.dtype} of shape {masks.shape}."
        )
    wrong = np.argwhere(forbidden_choices(masks, actions))
    if len(wrong):
        row, slot = wrong[0]
        raise InvalidDatasetError(
            f"Expected masks that allow what was done, row {row}, slot {slot} has the choice "
            f"{actions[row, slot]}, which its mask forbids. Correct the mask, or leave out the row."
        )


def _check_slates(states: tuple[int, ...], actions: tuple[int, ...], rewards: Floats) -> None:
    same = len(actions) == 2 and rewards.shape == actions and actions[0] > 0
    if not same or states[:1] != actions[:1]:
        raise InvalidDatasetError(
            "Expected observations (n, obs) and actions and slot_rewards of one shape (n, N), n at "
            f"least 1, got {states}, {actions} and {rewards.shape}."
        )
    wrong = np.argwhere(~np.isfinite(rewards))
    if len(wrong):
        row, slot = wrong[0]
        raise InvalidDatasetError(
            f"Expected finite slot_rewards, row {row}, slot {slot} has {rewards[row, slot]}. "
            "Leave such slates out."
        )
