"""Codes of states by which networks tell places apart."""

from __future__ import annotations

import torch
from torch import nn

MOST_BOUNDS = 8  # of a column
NO_BOUND = 1e30  # files hold finite numbers


class Places(nn.Module):
    """Codes of states by which networks tell places apart: numbers, and which bounds they exceed.

    Bounds of a column are between its values if these are few, as in a grid, or quantiles of them.
    """

    bounds: torch.Tensor  # (D, 8); `NO_BOUND` where a column has fewer values

    def __init__(self, observation_size: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.size = observation_size * (1 + MOST_BOUNDS)
        self.register_buffer("bounds", torch.full((observation_size, MOST_BOUNDS), NO_BOUND))

    def fit(self, x: torch.Tensor) -> None:
        """Takes bounds from the networks' input `(n, D)`."""
        self.bounds.fill_(NO_BOUND)
        shares = torch.linspace(0.0, 1.0, MOST_BOUNDS + 2, device=x.device)[1:-1]
        for column, bounds in zip(x.T, self.bounds, strict=True):
            values = column.unique()
            if len(values) <= MOST_BOUNDS + 1:
                between = (values[1:] + values[:-1]) / 2.0
                bounds[: len(between)] = between
            else:
                bounds.copy_(column.quantile(shares))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns codes `(R, 9 D)` of states `(R, D)`."""
        return torch.cat([x, (x[..., None] > self.bounds).to(x.dtype).flatten(-2)], dim=-1)
