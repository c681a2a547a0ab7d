"""Codes of a column's values, by which a network tells values apart, and small steps, at once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

MOST_VALUES = 9  # of a column that have codes
LEAST_SHARE = 0.05  # of rows that hold the least or largest value, where a column has more
SAME = 1e-5  # of scaled numbers: a GPU scales a little differently
N_RAMPS = 8  # of a column with more values, between quantiles
MOST_RAMPED = 128  # columns with ramps: where more have many values, none has
NO_BOUND = 1e30  # files hold finite numbers


def bounds_between(column: torch.Tensor) -> torch.Tensor | None:
    """Returns the bounds between the values of a column `(n,)`; None if it has more than nine."""
    values = column.unique()
    return None if len(values) > MOST_VALUES else (values[1:] + values[:-1]) / 2.0


def bounds_of_values(column: torch.Tensor) -> torch.Tensor:
    """Returns bounds `(2, V)` from which on and up to which a number counts as a value.

    Of a column `(n,)` with three to nine values all have some, in the middle between them. Of one
    with more the least and the largest have, each if 5 % of the rows hold it. Two values or one
    need none.
    """
    end = column.new_full((1,), NO_BOUND)
    between = bounds_between(column)
    if between is not None and len(between) < 2:
        return column.new_zeros(2, 0)
    if between is not None:
        return torch.stack([torch.cat([-end, between]), torch.cat([between, end])])
    least, largest = column.amin(), column.amax()
    bounds = []
    if (column == least).double().mean() >= LEAST_SHARE:
        bounds.append(torch.cat([-end, least[None] + SAME]))
    if (column == largest).double().mean() >= LEAST_SHARE:
        bounds.append(torch.cat([largest[None] - SAME, end]))
    return torch.stack(bounds, 1) if bounds else column.new_zeros(2, 0)


def bounds_of_ramps(column: torch.Tensor) -> torch.Tensor:
    """Returns where each ramp begins and ends, `(2, R)`, of a column `(n,)` with many values.

    Between eighths of its rows; a value that an eighth or more hold is no ramp of its own.
    """
    if bounds_between(column) is not None:
        return column.new_zeros(2, 0)
    shares = torch.linspace(0.0, 1.0, N_RAMPS + 1, device=column.device)
    edges = column.quantile(shares).unique()
    return torch.stack([edges[:-1], edges[1:]])


class ValueCodes(nn.Module):
    """What codes of values add to a layer: those of values that recur, and ramps.

    A grid's coordinates, levels and counts are numbers, and what to do can be another thing at each
    of them. So it can at 0 health or an empty stock, and at a small one. A network has to bend a
    line at each value to see it, and learns what happens by chance as well meanwhile. So values
    that recur have one-hot codes (`bounds_of_values`).

    A number with many values rises along eight ramps from 0 to 1, one after the other, where
    it passes an eighth of the data. (The piecewise linear encoding of Gorishniy et al., On
    Embeddings for Numerical Features in Tabular Deep Learning, 2022, section 3.2.) A rule that
    depends on small differences, or on which of two is larger, is learned from fewer rows.

    Weights start from 0.

    Args:
        observation_size: columns of the networks' input (D).
        width: of the layer.
    """

    bounds: torch.Tensor  # (2, D, 9) of values; none is between those of what is no value
    ramps: torch.Tensor  # (2, D, 8): where they begin and end; those that are none begin nowhere
    columns: torch.Tensor  # numbers of those that have codes of values
    ramped: torch.Tensor  # numbers of those that have ramps
    fitted: torch.Tensor  # (1,): whether they are known

    def __init__(self, observation_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(observation_size, MOST_VALUES, width))
        self.ramp_weight = nn.Parameter(torch.zeros(observation_size, N_RAMPS, width))
        nothing = torch.full((2, observation_size, MOST_VALUES), NO_BOUND)
        self.register_buffer("bounds", nothing)
        self.register_buffer("ramps", torch.empty(2, observation_size, N_RAMPS))
        self.register_buffer("fitted", torch.zeros(1, dtype=torch.bool))
        for name in ("columns", "ramped"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int64), persistent=False)
        self._knows_columns = False  # since weights were loaded
        self._begin_nowhere()
        # A copy's hook is given the copy.
        cast(Any, self).register_load_state_dict_post_hook(lambda copy, _: copy._forget())

    @property
    def is_used(self) -> bool:
        """Whether any column has codes. A GPU is asked once, not in each step."""
        if not self._knows_columns:
            self.columns, self.ramped = (
                (bounds[0, :, 0] != NO_BOUND).nonzero()[:, 0]
                for bounds in (self.bounds, self.ramps)
            )
            self._knows_columns = True
        return len(self.columns) + len(self.ramped) > 0

    def _forget(self) -> None:
        self._knows_columns = False

    def _begin_nowhere(self) -> None:
        self.ramps[0], self.ramps[1] = NO_BOUND, 2.0 * NO_BOUND

    def fit(self, x: torch.Tensor) -> None:
        """Takes the values of the networks' input `(n, D)`."""
        n_ramped = 0
        for number, column in enumerate(x.T):
            bounds, ramps = bounds_of_values(column), bounds_of_ramps(column)
            self.bounds[:, number, : bounds.shape[1]] = bounds
            self.ramps[:, number, : ramps.shape[1]] = ramps
            n_ramped += ramps.shape[1] > 0
        if n_ramped > MOST_RAMPED:
            self._begin_nowhere()
        self.fitted.fill_(True)
        self._forget()

    def leave_out(self) -> None:
        """Says that no column has codes, whatever the data hold."""
        self.fitted.fill_(True)

    def train_used(self) -> None:
        """Lets weights be trained that are in each step; processes would wait for others."""
        self.weight.requires_grad_(self.is_used and len(self.columns) > 0)
        self.ramp_weight.requires_grad_(self.is_used and len(self.ramped) > 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what columns `(B, D)` add, `(B, W)`, if codes are used."""
        added = []
        if len(self.columns) > 0:
            lower, upper = self.bounds[:, self.columns]
            of_column = x[:, self.columns, None]
            codes = (of_column > lower) & (of_column <= upper)  # (B, columns, 9)
            added.append(_sum_of(codes.to(x.dtype), self.weight[self.columns]))
        if len(self.ramped) > 0:
            begin, end = self.ramps[:, self.ramped]
            risen = ((x[:, self.ramped, None] - begin) / (end - begin)).clamp(0.0, 1.0)
            added.append(_sum_of(risen.to(x.dtype), self.ramp_weight[self.ramped]))
        return added[0] if len(added) == 1 else added[0] + added[1]


def _sum_of(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns what codes `(B, C, K)` of columns add by weights `(C, K, W)`, `(B, W)`."""
    return codes.flatten(1) @ weight.flatten(0, 1)
