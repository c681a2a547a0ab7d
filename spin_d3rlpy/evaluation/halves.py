r"""What a policy returns by each of several rewards, by fitted Q evaluation on halves of a log.

.. math::

    \hat V = \bar R + \frac{1}{2 K} \sum_k \big( \hat V^\pi_k(s_0) - \hat V^\mu_k(s_0) \big)

In each of K random splits of the episodes, each half's evaluation is read in the first states of
the other half. The policy :math:`\mu` that logged is evaluated by the same steps, and its mean
return :math:`\bar R` is known: what both evaluations miss alike cancels out. How far the halves
differ is how little the log tells, which is the interval.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from d3rlpy.base import DeviceArg
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from numpy.typing import NDArray
from scipy import stats

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQE, MultiDiscreteFQEConfig

Floats = NDArray[np.float64]
Act = Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[Any]]

_ROWS_AT_ONCE = 4096
HIDDEN = (128, 128)  # of each Q function: many are trained, on half of the data
LEAST_EPISODES = 40  # fewer in a half have no mean to speak of


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number and where it surely lies.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, error: float, level: float, freedom: float) -> Interval:
        """Returns the interval of a standard error with so many degrees of freedom."""
        width = error * float(stats.t.ppf(0.5 + level / 2.0, freedom))
        return cls(value, value - width, value + width)

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class HalvesEstimate:
    """What a policy returns by one reward, in an episode.

    Attributes:
        value: mean return of the policy.
        gain: how much that is above the log's own episodes.
        logged: mean return of the log.
        missed: how far the evaluation of who logged was off their known return, at most over
            halves, in standard deviations of returns.
        tolerance: how large `missed` may be: two standard errors of a half's mean, and a tenth of
            the mean return or of the deviation, as in `LogCheck`.
    """

    value: Interval
    gain: Interval
    logged: Interval
    missed: float
    tolerance: float

    @property
    def is_answered(self) -> bool:
        """Whether the log can tell: its own return is reproduced."""
        return self.missed <= self.tolerance  # False if not a number

    def __str__(self) -> str:
        if not self.is_answered:
            return (
                f"The log cannot tell: the evaluation misses the log's own return by "
                f"{self.missed:.2g} standard deviations, expected {self.tolerance:.2g} at most. "
                "Evaluate for more steps (n_steps=), or with a smaller gamma."
            )
        return f"{self.value}, {self.gain} from the log's {self.logged.value:.4g}"


def estimate_by_halves(
    dataset: DeviceReplayBuffer,
    act: Act,
    *,
    gamma: float = 1.0,
    n_steps: int = 1_000,
    splits: int = 2,
    level: float = 0.9,
    seed: int = 0,
    device: DeviceArg = False,
) -> dict[str, HalvesEstimate]:
    """Estimates what a policy that is a function of the state returns by each reward of a log.

    It trains an evaluation for each reward and half: `2 * splits` of each, of `n_steps` updates.

    Args:
        dataset: logged episodes; better ones that the policy was not trained on.
        act: the policy, from states `(B, obs)` and their masks `(B, N, K)`, None without, its
            actions `(B, N)`.
        gamma: discount of returns.
        n_steps: gradient steps of each evaluation.
        splits: of the episodes into halves (K).
        level: of the intervals.
        seed: of splits, networks and mini-batches.
        device: as in d3rlpy.

    Returns:
        An estimate for each of the dataset's rewards by name, `"reward"` if it has one.

    Raises:
        InvalidDatasetError: fewer than 80 episodes.
        ValueError: `level` or `gamma` is out of range, or a number is below 1.
    """
    if not (0.0 < level < 1.0 and 0.0 < gamma <= 1.0 and n_steps >= 1 and splits >= 1):
        raise ValueError(
            "Expected level between 0 and 1, gamma above 0 and up to 1, n_steps and splits of at "
            f"least 1; got level={level}, gamma={gamma}, n_steps={n_steps}, splits={splits}."
        )
    require_episodes(dataset)
    acting = _RememberedActions(dataset, act)
    dataset = acting.dataset
    names: Sequence[str | None] = [None]
    if dataset.named_rewards is not None:
        names = dataset.named_rewards.names
    found = {}
    for name in names:
        by_one = dataset if name is None else dataset.with_weights({name: 1.0})
        rng = np.random.default_rng(seed)
        halves = [_halves(by_one.size(), rng) for _ in range(splits)]
        found[name or "reward"] = _estimate(
            by_one, acting, halves, gamma, n_steps, level, seed, device
        )
    return found


def require_episodes(dataset: DeviceReplayBuffer) -> None:
    """Checks before a long training that a log can be estimated from.

    Raises:
        InvalidDatasetError: fewer than 80 episodes.
    """
    if dataset.size() < 2 * LEAST_EPISODES:
        raise InvalidDatasetError(
            f"Expected {2 * LEAST_EPISODES} episodes or more to estimate from, got "
            f"{dataset.size()}. Log more, or pass more of the log."
        )


def _halves(episodes: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    order = rng.permutation(episodes)
    middle = episodes // 2
    return sorted(order[:middle].tolist()), sorted(order[middle:].tolist())


def _estimate(
    dataset: DeviceReplayBuffer,
    acting: _RememberedActions,
    halves: Sequence[tuple[list[int], list[int]]],
    gamma: float,
    n_steps: int,
    level: float,
    seed: int,
    device: DeviceArg,
) -> HalvesEstimate:
    returns = _returns(dataset, gamma)
    deviation = float(returns.std()) or 1.0
    gains, misses = [], []
    # Training must not depend on, nor disturb, the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for pair in halves:
            for learned, read in (pair, pair[::-1]):
                of_policy, of_log = _fitted(
                    dataset.select(learned), dataset.select(read), acting, gamma, n_steps, device
                )
                gains.append(of_policy - of_log)
                misses.append(abs(of_log - float(returns[read].mean())) / deviation)
    gain = float(np.mean(gains))
    # Both halves of a split together are all data: their mean has half of a half's variance, and
    # further splits of the same data only steady the figures.
    error_of_gain = float(np.std(gains, ddof=1)) / math.sqrt(2.0)
    error_of_log = float(returns.std(ddof=1)) / math.sqrt(len(returns))
    logged = float(returns.mean())
    freedom = len(gains) - 1
    both = math.hypot(error_of_gain, error_of_log)
    half = len(returns) // 2
    return HalvesEstimate(
        value=Interval.of(logged + gain, both, level, freedom),
        gain=Interval.of(gain, error_of_gain, level, freedom),
        logged=Interval.of(logged, error_of_log, level, len(returns) - 1),
        missed=float(np.max(misses)),
        tolerance=2.0 / math.sqrt(half) + 0.1 * max(1.0, abs(logged) / deviation),
    )


def _fitted(
    learned: DeviceReplayBuffer,
    read: DeviceReplayBuffer,
    acting: _RememberedActions,
    gamma: float,
    n_steps: int,
    device: DeviceArg,
) -> tuple[float, float]:
    """Returns the mean values in the first states of `read` of the policy and of who logged."""
    encoder = VectorEncoderFactory(list(HIDDEN))
    config = MultiDiscreteFQEConfig(gamma=gamma, encoder_factory=encoder)
    evaluation = MultiDiscreteFQE(acting, config, device, takes_masks=True)
    evaluation.fit(
        learned,
        n_steps=n_steps,
        n_steps_per_epoch=n_steps,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    )
    return evaluation.first_values(read)


def _returns(dataset: DeviceReplayBuffer, gamma: float) -> Floats:
    """Returns of the episodes, `(episodes,)`; a mean return follows where one was cut off."""
    rewards, starts = dataset.rewards, dataset.episode_starts[:-1]
    returns = dataset.completed_returns(rewards, [gamma])[0]
    return np.asarray(returns[starts].double().cpu().numpy())


class _RememberedActions:
    """A policy's actions in all states of a log, which it is asked for once.

    Attributes:
        dataset: the log with standardized observations, which the actions are told by: scaled back,
            they would not be the same numbers.
    """

    def __init__(self, dataset: DeviceReplayBuffer, act: Act) -> None:
        mean, std = dataset.moments()
        standardized = (dataset.observations - mean.float()) / (std.float() + 1e-3)
        self.dataset = dataset.with_observations(standardized)
        self._known: dict[bytes, NDArray[np.int64]] = {}
        rows = torch.arange(len(dataset.observations), device=dataset.device)
        for part in rows.split(_ROWS_AT_ONCE):
            states = dataset.observations_at(part).cpu().numpy()
            masks = dataset.masks_at(part)
            allowed = None if masks is None else masks.cpu().numpy()
            actions = np.asarray(act(states, allowed), np.int64)
            seen = self.dataset.observations_at(part).cpu().numpy()
            self._known.update(zip(_keys(seen, allowed), actions, strict=True))

    def __call__(self, states: NDArray[Any], masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        keys = _keys(np.asarray(states, np.float32), masks)
        return np.stack([self._known[key] for key in keys])


def _keys(states: NDArray[Any], masks: NDArray[np.bool_] | None) -> list[bytes]:
    whole = np.ascontiguousarray(states, np.float32)
    keys = [row.tobytes() for row in whole]
    if masks is None:
        return keys
    packed = np.packbits(masks.reshape(len(masks), -1), axis=1)
    return [key + row.tobytes() for key, row in zip(keys, packed, strict=True)]
