"""Codes of states by which networks tell places apart."""

from __future__ import annotations

import torch
from torch import nn

MOST_BOUNDS = 8  # of a column
STEEP = 1e6  # of codes that are 0 or 1
NO_BOUND = 1e30  # files hold finite numbers


class Places(nn.Module):
    """Codes of states by which networks tell places apart: numbers, and which bounds they exceed.

    Bounds of a column are between its values if these are few, as in a grid, or quantiles of them.
    A number in the middle between two such values, as an unsure model predicts, exceeds the bound
    there in part, so that a place that may be at an edge is not taken for one that surely is.
    """

    bounds: torch.Tensor  # (D, 8); `NO_BOUND` where a column has fewer values
    slopes: torch.Tensor  # (D, 8): of codes at bounds

    def __init__(self, observation_size: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.size = observation_size * (1 + MOST_BOUNDS)
        self.register_buffer("bounds", torch.full((observation_size, MOST_BOUNDS), NO_BOUND))
        self.register_buffer("slopes", torch.full((observation_size, MOST_BOUNDS), STEEP))

    def fit(self, x: torch.Tensor) -> None:
        """Takes bounds from the networks' input `(n, D)`."""
        self.bounds.fill_(NO_BOUND)
        self.slopes.fill_(STEEP)
        shares = torch.linspace(0.0, 1.0, MOST_BOUNDS + 2, device=x.device)[1:-1]
        for column, bounds, slopes in zip(x.T, self.bounds, self.slopes, strict=True):
            values = column.unique()
            if len(values) <= MOST_BOUNDS + 1:
                between = (values[1:] + values[:-1]) / 2.0
                bounds[: len(between)] = between
                # 0 and 1 up to a quarter of the way from a value to the next one
                slopes[: len(between)] = (2.0 / values.diff()).clamp(max=STEEP)
            else:
                bounds.copy_(column.quantile(shares))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns codes `(R, 9 D)` of states `(R, D)`."""
        exceeds = ((x[..., None] - self.bounds) * self.slopes + 0.5).clamp(0.0, 1.0)
        return torch.cat([x, exceeds.flatten(-2)], dim=-1)
