"""How far critics can be trusted, measured on episodes that they were not trained on.

Critics rank actions by advantages. On held-out episodes an advantage can be compared with what
happened after the action: the regression of n-step residuals on predicted advantages has a slope of
1 where predictions hold, and of 0 where they are noise.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from spin_d3rlpy.data import DeviceReplayBuffer

ActsBy = Literal["search", "imitation"]
HORIZONS = (1, 5)  # steps of the residuals
LEAST_SLOPE = 0.5
LEAST_BLOCKS = 8  # fewer do not tell how much a slope varies
MOST_ROWS = 2048  # held-out steps that are looked at
BLOCK = 50  # steps that count as one observation where episodes are longer


@dataclasses.dataclass(frozen=True)
class Trust:
    """How far the critics' advantages hold on held-out episodes.

    Attributes:
        slopes: of the regressions of 1-step and 5-step residuals on predicted advantages; 1 where
            predictions hold.
        standard_errors: of the slopes, over episodes or blocks of 50 steps.
        rows: held-out steps that were looked at; 0 if there were too few episodes to hold any out.
        blocks: episodes, or blocks of 50 steps of longer ones, that the errors are taken over.
        acts_by: `"search"` or `"imitation"`, where acting by the critics would cost more than it
            gains: where the slope of 1-step residuals less one standard error is below 0.5, or that
            of 5-step residuals plus one standard error (these vary much more), or where fewer than
            8 blocks could be looked at.
    """

    slopes: tuple[float, ...]
    standard_errors: tuple[float, ...]
    rows: int
    blocks: int

    @property
    def acts_by(self) -> ActsBy:
        if self.blocks < LEAST_BLOCKS:
            return "imitation"
        (one, five), (error_of_one, error_of_five) = self.slopes, self.standard_errors
        bounds = one - error_of_one, five + error_of_five
        return "search" if min(bounds) >= LEAST_SLOPE else "imitation"

    def __str__(self) -> str:
        if self.blocks < LEAST_BLOCKS:
            return f"acts by imitation: {self.rows} held-out steps are too few to test critics"
        found = ", ".join(
            f"{slope:.2f} +- {error:.2f} ({n} step{'s' if n > 1 else ''})"
            for n, slope, error in zip(HORIZONS, self.slopes, self.standard_errors, strict=True)
        )
        return f"acts by {self.acts_by}: of predicted advantages {found} hold on held-out episodes"


class TrustSwitch(nn.Module):
    """Trust as part of an algorithm's networks, so that whatever saves them keeps it."""

    figures: torch.Tensor  # (2, number of horizons): slopes, standard errors
    sizes: torch.Tensor  # (2,): rows and blocks, -1 as long as nothing was measured

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("figures", torch.ones(2, len(HORIZONS), dtype=torch.float64))
        self.register_buffer("sizes", torch.tensor([-1, -1]))

    @property
    def trust(self) -> Trust | None:
        """What was measured last."""
        rows, blocks = self.sizes.tolist()
        if rows < 0:
            return None
        slopes, errors = self.figures.tolist()
        return Trust(tuple(slopes), tuple(errors), rows, blocks)

    @trust.setter
    def trust(self, trust: Trust) -> None:
        figures = [trust.slopes, trust.standard_errors]
        self.figures.copy_(torch.tensor(figures, dtype=torch.float64))
        self.sizes.copy_(torch.tensor([trust.rows, trust.blocks]))

    @property
    def acts_by(self) -> ActsBy:
        """How to act; critics that were not tested are trusted."""
        return "search" if self.trust is None else self.trust.acts_by


# From observations (R, obs) and actions (R, N), or None for the mean over the policy's own, values.
Values = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@torch.no_grad()
def measure_trust(
    held_out: DeviceReplayBuffer,
    values: Values,
    gamma: float,
    scale_rewards: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Trust:
    """Compares predicted advantages with n-step residuals.

    Args:
        held_out: episodes that nothing was trained on.
        values: `Q(s, a)` of unscaled observations `(R, obs)` and actions `(R, N)`; for None V(s),
            the mean value of samples of the policy, other ones each time.
        gamma: the critics' discount.
        scale_rewards: as for the critics.
    """
    starts = held_out.episode_starts.tolist()
    rows = 0
    # By horizon: advantages, those over other samples and residuals, (3, steps) of each block.
    blocks: list[list[torch.Tensor]] = [[] for _ in HORIZONS]
    for start, end in itertools.pairwise(starts):
        if rows >= MOST_ROWS:
            break
        steps = torch.arange(start, end, device=held_out.device)
        first = held_out.observation_index[steps]
        observations = held_out.observations_at(torch.cat([first, first[-1:] + 1]))
        q = values(observations[:-1], held_out.actions[steps].long())
        # Of other samples each, so that the errors of one are not in the other.
        v, other = values(observations, None), values(observations, None)  # (T + 1,)
        advantage, again = q - v[:-1], q - other[:-1]
        rewards = held_out.rewards[steps]
        if scale_rewards is not None:
            rewards = scale_rewards(rewards)
        if held_out.terminals[end - 1]:
            other[-1] = 0.0
        for horizon, of_horizon in zip(HORIZONS, blocks, strict=True):
            residual = _residuals(rewards, other, gamma, horizon)
            of_horizon += torch.stack([advantage, again, residual]).double().split(BLOCK, dim=1)
        rows += end - start
    slopes, errors = zip(*(_slope(of_horizon) for of_horizon in blocks), strict=True)
    return Trust(tuple(slopes), tuple(errors), rows, len(blocks[0]))


def _residuals(rewards: torch.Tensor, v: torch.Tensor, gamma: float, n: int) -> torch.Tensor:
    """Returns `sum_j gamma^j r_{t+j} + gamma^k V(s_{t+k}) - V(s_t)`, k = n or to the end."""
    length = len(rewards)
    t = torch.arange(length, device=rewards.device)
    total = torch.zeros_like(rewards)
    for j in range(n):
        inside = t + j < length
        total = total + gamma**j * torch.where(inside, rewards[(t + j).clamp(max=length - 1)], 0.0)
    steps = (length - t).clamp(max=n)
    return total + gamma**steps * v[t + steps] - v[:-1]


def _slope(blocks: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Returns the slope of residuals on advantages, with an intercept, and its standard error.

    Advantages over other samples are the instrument: noisy ones alone would bias the slope. Without
    an intercept, a policy that is better than the data would look like wrong critics.
    """
    means = torch.cat(list(blocks), dim=1).mean(1, keepdim=True)
    sums = []
    for block in blocks:
        advantage, again, residual = block - means
        sums.append(torch.stack([(advantage * residual).sum(), (advantage * again).sum()]))
    products, squares = torch.stack(sums).T
    total = squares.sum()
    if not total > 0.0:
        return 0.0, 0.0  # advantages are as good as zero
    slope, n = products.sum() / total, len(blocks)
    variance = (products - slope * squares).square().sum() * n / max(1, n - 1)
    return float(slope), float(variance.sqrt() / total)
