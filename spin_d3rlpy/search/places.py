"""Codes of states by which networks tell places apart, and which of them a log has been at."""

from __future__ import annotations

import torch
from torch import nn

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.value_codes import MOST_VALUES, NO_BOUND, bounds_between

MOST_BOUNDS = MOST_VALUES - 1  # of a column
STEEP = 1e6  # of codes that are 0 or 1
CLEAR = 0.1  # a code that differs by more from 0 and 1 is of no certain place
MOST_PLACES = 2**16  # that are remembered
NOWHERE = -1  # key of what is no certain place
LARGEST_FACTOR = 2**40  # of keys
NO_KEY = 2**62  # of no place, and larger than all keys


class Places(nn.Module):
    """Codes of states by which networks tell places apart: numbers, and which bounds they exceed.

    Bounds of a column are between its values if these are few, as in a grid, or quantiles of them.
    A number in the middle between two such values, as an unsure model predicts, exceeds the bound
    there in part, so that a place that may be at an edge is not taken for one that surely is.
    """

    bounds: torch.Tensor  # (D, 8); `NO_BOUND` where a column has fewer values
    slopes: torch.Tensor  # (D, 8): of codes at bounds
    has_few_values: torch.Tensor  # (D,): whether bounds are between all values of a column
    factors: torch.Tensor  # (D,): of keys

    def __init__(self, observation_size: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.size = observation_size * (1 + MOST_BOUNDS)
        self.register_buffer("bounds", torch.full((observation_size, MOST_BOUNDS), NO_BOUND))
        self.register_buffer("slopes", torch.full((observation_size, MOST_BOUNDS), STEEP))
        self.register_buffer("has_few_values", torch.zeros(observation_size, dtype=torch.bool))
        generator = torch.Generator().manual_seed(0)
        factors = torch.randint(1, LARGEST_FACTOR, (observation_size,), generator=generator)
        self.register_buffer("factors", factors, persistent=False)

    def fit(self, x: torch.Tensor) -> None:
        """Takes bounds from the networks' input `(n, D)`."""
        self.bounds.fill_(NO_BOUND)
        self.slopes.fill_(STEEP)
        shares = torch.linspace(0.0, 1.0, MOST_BOUNDS + 2, device=x.device)[1:-1]
        columns = zip(x.T, self.bounds, self.slopes, self.has_few_values, strict=True)
        for column, bounds, slopes, has_few_values in columns:
            between = bounds_between(column)
            has_few_values.fill_(between is not None)
            if between is not None:
                bounds[: len(between)] = between
                # 0 and 1 up to a quarter of the way from a value to the next one
                slopes[: len(between)] = (2.0 / column.unique().diff()).clamp(max=STEEP)
            else:
                bounds.copy_(column.quantile(shares))

    def keys(self, codes: torch.Tensor) -> torch.Tensor:
        """Returns a number `(R,)` of each place, by which places are the same or not.

        It is -1 where this is not known: of a place between others, and wherever a column has many
        values, so that no two states are ever the same.

        Args:
            codes: `(R, 9 D)`.
        """
        exceeds = codes[:, self.observation_size :].unflatten(1, (-1, MOST_BOUNDS))
        is_clear = ((exceeds - 0.5).abs() >= 0.5 - CLEAR).all(-1)  # (R, D)
        numbers = (exceeds > 0.5).sum(-1)  # of the column's values
        keys = (numbers * self.factors).sum(-1)
        return torch.where((is_clear & self.has_few_values).all(-1), keys, NOWHERE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns codes `(R, 9 D)` of states `(R, D)`."""
        exceeds = ((x[..., None] - self.bounds) * self.slopes + 0.5).clamp(0.0, 1.0)
        return torch.cat([x, exceeds.flatten(-2)], dim=-1)


class KnownPlaces(nn.Module):
    """Places that a log has been at, by their keys."""

    sorted_keys: torch.Tensor  # (65,536,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sorted_keys", torch.full((MOST_PLACES,), NO_KEY))

    def remember(self, keys: torch.Tensor) -> None:
        """Takes places in place of those that were known, 65,536 at most.

        Args:
            keys: `(n,)`, as `Places.keys` returns them.
        """
        distinct = keys[keys != NOWHERE].unique()[:MOST_PLACES]
        self.sorted_keys.fill_(NO_KEY)
        self.sorted_keys[: len(distinct)] = distinct

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns which places `(R,)` are known."""
        if not is_exporting():
            at = torch.searchsorted(self.sorted_keys, keys).clamp(max=MOST_PLACES - 1)
            return self.sorted_keys[at] == keys
        at = torch.zeros_like(keys)  # the same by steps that files know
        for power in reversed(range(MOST_PLACES.bit_length() - 1)):
            further = at + 2**power
            at = torch.where(self.sorted_keys[further - 1] < keys, further, at)
        return self.sorted_keys[at] == keys
