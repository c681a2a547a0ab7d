r"""Doubly robust estimates: fitted Q evaluation, corrected by importance weights.

.. math::

    \frac{1}{n} \sum_i \Big[ V(s_{i,0})
        + \sum_t \gamma^t w_{i,t} (r_{i,t} + \gamma V(s_{i,t+1}) - Q(s_{i,t}, a_{i,t})) \Big]

It is right if either the weights or Q are, and less noisy than weights alone where Q is good. Q of
an episode is always learned from other episodes (cross-fitting): the errors of a Q in its own
training data are too small, and so would be the interval.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from d3rlpy.base import DeviceArg
from d3rlpy.logging import NoopAdapterFactory
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.evaluation.estimates import Estimate, WeightedGains, summarize
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQE, MultiDiscreteFQEConfig
from spin_d3rlpy.evaluation.importance import (
    KnownProbabilities,
    LoggedSteps,
    cumulative_weights,
    discounts,
    logged_steps,
    masks_of_states,
)
from spin_d3rlpy.evaluation.probabilities import ActionProbabilities, Masks, with_masks

Floats = NDArray[np.float64]
_ROWS_AT_ONCE = 8192


def doubly_robust(
    dataset: DeviceReplayBuffer,
    policy: ActionProbabilities,
    behavior: ActionProbabilities | KnownProbabilities,
    *,
    fqe: MultiDiscreteFQEConfig | None = None,
    n_steps: int = 10_000,
    gamma: float = 1.0,
    clip: float | None = None,
    self_normalized: bool = True,
    value_samples: int = 8,
    folds: int = 2,
    level: float = 0.9,
    n_bootstrap: int = 1000,
    seed: int = 0,
    device: DeviceArg = False,
    show_progress: bool = False,
) -> Estimate:
    """Estimates a policy's discounted return by fitted Q evaluation and importance weights.

    It trains `folds` Q functions of `n_steps` gradient steps each (about a millisecond a step on a
    CPU with the default networks, plus what the policy takes to act on a batch). Where the dataset
    has masks, probabilities and values are of what they allow.

    Args:
        dataset: logged episodes.
        policy: the one to evaluate, see `importance_sampling`.
        behavior: of the log, see `importance_sampling`.
        fqe: config of the Q functions; its discount is replaced by `gamma`. With images it has
            their `image_encoder_factory`.
        n_steps: gradient steps of each Q function.
        gamma: discount.
        clip: largest weight, None for no limit. The estimate then leans on Q where weights are
            large.
        self_normalized: divide by the weights' sum in place of the number of episodes, step by
            step.
        value_samples: actions drawn in each state for V, the mean of their Q.
        folds: parts of the log; Q of each is learned from the others.
        level: of the interval.
        n_bootstrap: number of times that episodes are drawn for the interval.
        seed: of folds, networks, batches and draws.
        device: as in d3rlpy.
        show_progress: draw progress bars.

    Raises:
        ValueError: an argument is out of range, or there are fewer episodes than folds.
        InvalidDatasetError: known probabilities do not fit the dataset.
        TypeError: the dataset has masks, and probabilities of what they allow are not known.
        InvalidActionSpaceError: a function that is evaluated decides what a mask forbids.
    """
    episodes = dataset.size()
    if not 2 <= folds <= episodes or value_samples < 1:
        raise ValueError(
            f"Expected folds of at least 2 and at most the {episodes} episodes, and value_samples "
            f"of at least 1, got folds={folds} and value_samples={value_samples}."
        )
    steps = logged_steps(dataset, policy, behavior)
    weights, clipped = cumulative_weights(steps, clip)
    discount = discounts(gamma, weights.shape[1])
    q, v, next_v = (np.zeros(len(steps.rewards)) for _ in range(3))
    config = dataclasses.replace(fqe or MultiDiscreteFQEConfig(), gamma=gamma)
    fold_of = np.random.default_rng(seed).permutation(episodes) % folds
    step_fold = np.repeat(fold_of, np.diff(steps.starts))

    def act(observations: NDArray[Any], masks: Masks | None) -> NDArray[Any]:
        return with_masks(policy, masks).sample(observations)

    # Training must not depend on, nor disturb, the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for fold in range(folds):
            # Whatever Q misses, the weighted errors correct: no reason to refuse it.
            evaluation = MultiDiscreteFQE(act, config, device, takes_masks=True, check=False)
            evaluation.fit(
                dataset.select(np.flatnonzero(fold_of != fold).tolist()),
                n_steps=n_steps,
                n_steps_per_epoch=n_steps,
                logger_adapter=NoopAdapterFactory(),
                show_progress=show_progress,
            )
            rows = np.flatnonzero(step_fold == fold)
            parts = _values(evaluation, policy, dataset, steps, rows, value_samples)
            for whole, part in zip((q, v, next_v), parts, strict=True):
                whole[rows] = part
    errors = steps.rewards + gamma * (1.0 - steps.terminals) * next_v - q
    data = WeightedGains(weights, steps.padded(errors) * discount, v[steps.starts[:-1]])
    name = f"{'self-normalized ' if self_normalized else ''}doubly robust"
    return summarize(name, data, self_normalized, level, n_bootstrap, seed, clipped)


def _values(
    evaluation: MultiDiscreteFQE,
    policy: ActionProbabilities,
    dataset: DeviceReplayBuffer,
    steps: LoggedSteps,
    rows: NDArray[np.int64],
    n_samples: int,
) -> tuple[Floats, Floats, Floats]:
    """Returns Q of the logged actions, V before and V after steps, each `(R,)`."""
    q, v, next_v = [], [], []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        before, after = steps.observations[part], steps.next_observations[part]
        states = dataset.observation_index[torch.from_numpy(part).to(dataset.device)].long()
        acts_before = with_masks(policy, masks_of_states(dataset, states))
        acts_after = with_masks(policy, masks_of_states(dataset, states + 1))
        q.append(evaluation.predict_value(before, steps.actions[part]))
        v.append(_mean_value(evaluation, acts_before, before, n_samples))
        next_v.append(_mean_value(evaluation, acts_after, after, n_samples))
    return np.concatenate(q), np.concatenate(v), np.concatenate(next_v)


def _mean_value(
    evaluation: MultiDiscreteFQE,
    policy: ActionProbabilities,
    observations: NDArray[Any],
    n_samples: int,
) -> Floats:
    drawn = [
        evaluation.predict_value(observations, policy.sample(observations))
        for _ in range(n_samples)
    ]
    return np.asarray(np.mean(drawn, axis=0), np.float64)
