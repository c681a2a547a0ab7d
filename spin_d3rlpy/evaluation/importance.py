r"""Off-policy estimates of a policy's value by importance weights, from logged episodes.

The weight of step t of an episode is :math:`w_t = \prod_{k \le t} \pi(a_k|s_k) / \mu(a_k|s_k)`,
where :math:`\mu` is the behavior that was logged and :math:`\pi` the policy that is evaluated.

References:
    * Precup et al., Eligibility Traces for Off-Policy Policy Evaluation, 2000 (per decision).
    * Jiang and Li, Doubly Robust Off-policy Value Evaluation, 2016.
    * Thomas and Brunskill, Data-Efficient Off-Policy Policy Evaluation, 2016 (self-normalized
      doubly robust).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.source_rows import RowValues
from spin_d3rlpy.errors import InvalidDatasetError, require_one_of
from spin_d3rlpy.evaluation.estimates import Estimate, WeightedGains, summarize
from spin_d3rlpy.evaluation.probabilities import ActionProbabilities, Masks, with_masks

Floats = NDArray[np.float64]
# Of the logged actions, see `importance_sampling`.
KnownProbabilities: TypeAlias = str | RowValues | NDArray[Any] | Sequence[float] | torch.Tensor
Weighting = Literal["per_decision", "self_normalized", "whole_episode"]

# Masks of more states at once would need much memory.
_ROWS_AT_ONCE = 65_536

_NAMES = {
    "per_decision": "per-decision importance sampling",
    "self_normalized": "self-normalized per-decision importance sampling",
    "whole_episode": "self-normalized importance sampling of whole episodes",
}


@dataclasses.dataclass(frozen=True)
class LoggedSteps:
    """A log and how much likelier the evaluated policy takes each logged action.

    Attributes:
        observations: `(n, obs)`, before each step.
        next_observations: `(n, obs)`, after each step.
        actions: `(n, N)`.
        rewards: `(n,)`.
        terminals: `(n,)`.
        starts: `(episodes + 1,)` first step of each episode, and n.
        log_ratios: `(n,)` of evaluated to logged probabilities.
    """

    observations: NDArray[np.float32]
    next_observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: Floats
    terminals: Floats
    starts: NDArray[np.int64]
    log_ratios: Floats

    def padded(self, values: Floats, fill: float = 0.0) -> Floats:
        """Returns values of steps `(n,)` as `(episodes, T)`, with `fill` after each end."""
        lengths = np.diff(self.starts)
        table = np.full((len(lengths), int(lengths.max())), fill)
        is_step = np.arange(table.shape[1]) < lengths[:, None]
        table[is_step] = values
        return table


def logged_steps(
    dataset: DeviceReplayBuffer,
    policy: ActionProbabilities,
    behavior: ActionProbabilities | KnownProbabilities,
) -> LoggedSteps:
    """Computes the ratios of probabilities of all logged actions.

    Where the dataset has masks, probabilities are of what they allow.

    Args:
        dataset: logged episodes.
        policy: the one to evaluate.
        behavior: of the log: `BehaviorProbabilities(asm)`, or known probabilities of the logged
            actions, such as an experiment's, see `importance_sampling`.

    Raises:
        InvalidDatasetError: known probabilities are not `(n,)` numbers above 0 and up to 1.
        TypeError: the dataset has masks, and probabilities of what they allow are not known.
        InvalidActionSpaceError: a function that is evaluated decides what a mask forbids.
    """
    rows = dataset.observation_index.long()
    observations = dataset.observations_at(rows).cpu().numpy()
    actions = dataset.actions.long().cpu().numpy()
    known = None
    if not isinstance(behavior, ActionProbabilities):
        known = _log_of_known(dataset.source.check(behavior, "probabilities"), len(actions))
    ratios = []
    for start in range(0, len(actions), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        masks = masks_of_states(dataset, rows[part])
        data = observations[part], actions[part]
        if isinstance(behavior, ActionProbabilities):
            logged = with_masks(behavior, masks).log_prob(*data)
        else:
            assert known is not None
            logged = known[part]
        ratios.append(with_masks(policy, masks).log_prob(*data) - logged)
    return LoggedSteps(
        observations=observations,
        next_observations=dataset.observations_at(rows + 1).cpu().numpy(),
        actions=actions,
        rewards=dataset.rewards.double().cpu().numpy(),
        terminals=dataset.terminals.double().cpu().numpy(),
        starts=dataset.episode_starts.cpu().numpy(),
        log_ratios=np.concatenate(ratios),
    )


def masks_of_states(dataset: DeviceReplayBuffer, rows: torch.Tensor) -> Masks | None:
    """Returns the masks `(R, N, K)` of observations' rows `(R,)`; None if there are none."""
    masks = dataset.masks_at(rows)
    return None if masks is None else masks.cpu().numpy()


def importance_sampling(
    dataset: DeviceReplayBuffer,
    policy: ActionProbabilities,
    behavior: ActionProbabilities | KnownProbabilities,
    *,
    weighting: Weighting = "whole_episode",
    gamma: float = 1.0,
    clip: float | None = None,
    level: float = 0.9,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Estimate:
    r"""Estimates a policy's discounted return by importance sampling per decision.

    .. math::

        \frac{1}{n} \sum_i \sum_t \gamma^t w_{i,t} r_{i,t}

    `"self_normalized"` divides by the weights' sum in place of n at every step: a little biased,
    far less noisy. `"whole_episode"` weighs an episode's return by its last weight and divides by
    the sum of these: the noisiest where rewards come early, but never outside the logged returns.
    An episode that a time limit cut off counts up to there.

    Where the dataset has masks, both probabilities are of what they allow, see
    `SampledPolicy.masked`.

    Args:
        dataset: logged episodes.
        policy: the one to evaluate: `SampledPolicy(algo)`, `GreedyPolicy(algo)` or any object with
            their methods `log_prob`, `sample` and, for a dataset with masks, `masked`.
        behavior: `BehaviorProbabilities(asm)`, or known probabilities of the logged actions (which
            a dataset's masks do not change): the name of a column that `from_table(keep=[...])`
            kept; `dataset.rows_of(values)` with one value for each row of the table; or, where the
            transitions are all rows in their order, an array, list or tensor `(n,)`.
        weighting: `"per_decision"`, `"self_normalized"` or `"whole_episode"`.
        gamma: discount.
        clip: largest weight; larger ones are reduced to it. This makes estimates less noisy and
            biased towards the log. None for no limit.
        level: of the interval.
        n_bootstrap: number of times that episodes are drawn for the interval.
        seed: of these draws.

    Raises:
        ValueError: an argument is out of range.
        InvalidDatasetError: known probabilities do not fit the dataset.
        TypeError: the dataset has masks, and probabilities of what they allow are not known.
        InvalidActionSpaceError: a function that is evaluated decides what a mask forbids.
    """
    require_one_of("weighting", weighting, Weighting)
    steps = logged_steps(dataset, policy, behavior)
    weights, clipped = cumulative_weights(steps, clip)
    gains = steps.padded(steps.rewards) * discounts(gamma, weights.shape[1])
    if weighting == "whole_episode":
        weights, gains = weights[:, -1:], gains.sum(1, keepdims=True)
    data = WeightedGains(weights, gains, np.zeros(len(weights)))
    is_normalized = weighting != "per_decision"
    return summarize(_NAMES[weighting], data, is_normalized, level, n_bootstrap, seed, clipped)


def cumulative_weights(steps: LoggedSteps, clip: float | None) -> tuple[Floats, float]:
    """Returns the weights `(episodes, T)`, and the share of episodes with a clipped one.

    Raises:
        ValueError: `clip` is not above 0.
    """
    # A ratio of 1 after the end repeats the last weight.
    with np.errstate(over="ignore"):
        weights = np.exp(np.cumsum(steps.padded(steps.log_ratios), axis=1))
    return clip_weights(weights, clip)


def clip_weights(weights: Floats, clip: float | None) -> tuple[Floats, float]:
    """Returns weights of at most `clip`, and the share of rows with a larger one.

    Raises:
        ValueError: `clip` is not above 0.
    """
    if clip is None:
        # Larger ones would overflow where they are squared.
        return np.minimum(weights, 1e100), 0.0
    if not clip > 0.0:
        raise ValueError(f"Expected clip above 0 or None, got {clip}.")
    return np.minimum(weights, clip), float((weights > clip).any(1).mean())


def discounts(gamma: float, n: int) -> Floats:
    """Returns the discount of each of n steps.

    Raises:
        ValueError: `gamma` is not above 0 and up to 1.
    """
    if not 0.0 < gamma <= 1.0:
        raise ValueError(f"Expected gamma above 0 and up to 1, got {gamma}.")
    return np.asarray(gamma ** np.arange(n), np.float64)


def _log_of_known(values: NDArray[Any], n: int) -> Floats:
    try:
        probabilities = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDatasetError(f"Expected known probabilities as numbers: {error}") from error
    fits = probabilities.shape == (n,)
    if not fits or not ((probabilities > 0.0) & (probabilities <= 1.0)).all():
        raise InvalidDatasetError(
            f"Expected probabilities of the {n} logged actions, of shape ({n},), above 0 and up to "
            f"1, got shape {probabilities.shape}"
            + (f" and a smallest of {probabilities.min():.3g}." if fits else ".")
        )
    return np.asarray(np.log(probabilities))
