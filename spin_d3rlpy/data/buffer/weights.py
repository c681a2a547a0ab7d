"""Weighted drawing of trajectories, by return or by advantage over the start state's value."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

import torch

from spin_d3rlpy.files.fields import check_fields

Score = Literal["return", "advantage"]
# Of the linear regression of returns on start states, in units of a standardized feature's
# variance: few episodes must not be fitted exactly.
RIDGE = 0.1
# Of the largest return: sums of the same rewards differ by less, different returns by more.
_ROUNDING = 1e-9


@dataclasses.dataclass()
class TrajectoryWeights:
    r"""Trajectories are drawn with probability softmax(minmax(score) / temperature).

    A transition is drawn in proportion to its trajectory's weight; equal weights give uniform
    sampling. The temperature is raised until the effective sample size :math:`1 / \sum_j p_j^2` is
    at least `min_episodes`, because few trajectories are quickly overfitted. Trajectories whose
    scores are all alike (or a single one) are drawn uniformly.

    Returns tell good decisions from bad ones only where trajectories differ in what decided, not in
    luck. With `least_persistence`, they are weighted where good first halves of trajectories go
    with good second halves (`persistence`), and never where all have one step.

    References:
        * Hong et al., Harnessing Mixed Offline RL Datasets via Trajectory Weighting, 2023.

    Args:
        temperature: above 0: the lower, the more the best trajectories count; None draws uniformly.
        score: a trajectory's `"return"`, or its `"advantage"`: the return minus a linear regression
            on start states.
        min_episodes: least effective sample size.
        critics: also draw the critics' batches by weights.
        least_persistence: in [-1, 1]; trajectories are drawn alike where `persistence` is below it.
    """

    temperature: float | None = None
    score: Score = "return"
    min_episodes: float = 20.0
    critics: bool = False
    least_persistence: float = -1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def compute(self, returns: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Returns trajectory probabilities `(episodes,)`, equal ones if the scores are alike.

        Args:
            returns: sum of each trajectory's rewards, `(episodes,)`.
            starts: start states, `(episodes, obs)`.
        """
        scores = returns.double()
        if self.score == "advantage":
            scores = scores - _expected_returns(scores, starts.double())
        spread = scores.max() - scores.min()
        if not spread > _ROUNDING * returns.double().abs().max():
            return torch.full_like(scores, 1.0 / len(scores))
        scores = (scores - scores.min()) / spread
        assert self.temperature is not None
        temperature, least = self.temperature, min(self.min_episodes, 0.99 * len(scores))
        while True:
            weights = (scores / temperature).softmax(0)
            if 1.0 / weights.square().sum() >= least:
                return weights
            temperature *= 1.1


def persistence(halves: torch.Tensor, starts: torch.Tensor) -> float:
    """Returns how far the first half of a trajectory predicts the second one: a correlation.

    It is near 1 where trajectories come from policies that are better and worse, and near 0 where
    their returns differ by luck. NaN if all first or second halves are alike, e.g. where rewards
    come only at the end.

    Args:
        halves: mean rewards of the halves, `(episodes, 2)`.
        starts: start states, `(episodes, obs)`, whose influence is taken out.
    """
    first, second = (x - _expected_returns(x, starts.double()) for x in halves.double().T)
    first, second = first - first.mean(), second - second.mean()
    if not min(float(first.abs().max()), float(second.abs().max())) > _ROUNDING:
        return float("nan")
    return float((first @ second) / (first.norm() * second.norm()))


def _expected_returns(returns: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Returns a ridge regression's predictions from standardized start states, `(episodes,)`."""
    if not starts.shape[1]:  # observations are images alone
        return returns.mean().expand_as(returns)
    x = (starts - starts.mean(0)) / (starts.std(0, correction=0) + 1e-3)
    gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    slope = torch.linalg.solve(gram, x.T @ (returns - returns.mean()))
    expected: torch.Tensor = returns.mean() + x @ slope
    return expected


def returns_to_go(
    rewards: torch.Tensor, episode_starts: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Returns discounted sums of rewards `(n,)` from each step to its episode's end, `(n,)`."""
    sums = rewards.double().tolist()
    for start, end in itertools.pairwise(episode_starts.tolist()):
        for t in range(end - 2, start - 1, -1):
            sums[t] += gamma * sums[t + 1]
    return torch.tensor(sums, dtype=torch.float64).to(rewards)


def completed_returns(
    rewards: torch.Tensor, episode_starts: torch.Tensor, cut: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Returns `returns_to_go`, where the mean follows the end of episodes that were cut off.

    So a return does not depend on how much of an episode a log holds after it.

    Args:
        rewards: `(n,)`.
        episode_starts: first steps of episodes and the number of steps.
        cut: last steps of episodes that did not terminate.
        gamma: discount, below 1.
    """
    after = torch.zeros_like(rewards)
    after[cut] = gamma
    shares = returns_to_go(after, episode_starts, gamma).mean()
    mean = returns_to_go(rewards, episode_starts, gamma).mean() / (1.0 - shares)
    return returns_to_go(rewards + after * mean, episode_starts, gamma)
