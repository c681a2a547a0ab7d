"""Codes of values that recur, by which a network tells each of them apart at once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

MOST_VALUES = 9  # of a column that have codes
LEAST_SHARE = 0.05  # of rows that hold the least or largest value, where a column has more
SAME = 1e-5  # of scaled numbers: a GPU scales a little differently
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


class ValueCodes(nn.Module):
    """What values that recur add to a layer: one-hot codes and their weights.

    A grid's coordinates, levels and counts are numbers, and what to do can be another thing at each
    of them. So it can at 0 health or an empty stock, and at a small one. A network has to bend a
    line at each value to see it, and learns what happens by chance as well meanwhile. Weights
    start from 0, and there are none where no value recurs.

    Args:
        observation_size: columns of the networks' input (D).
        width: of the layer.
    """

    bounds: torch.Tensor  # (2, D, 9) of values; none is between those of what is no value
    columns: torch.Tensor  # numbers of those that have codes
    fitted: torch.Tensor  # (1,): whether they are known

    def __init__(self, observation_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(observation_size, MOST_VALUES, width))
        nothing = torch.full((2, observation_size, MOST_VALUES), NO_BOUND)
        self.register_buffer("bounds", nothing)
        self.register_buffer("fitted", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("columns", torch.empty(0, dtype=torch.int64), persistent=False)
        self._knows_columns = False  # since weights were loaded
        # A copy's hook is given the copy.
        cast(Any, self).register_load_state_dict_post_hook(lambda copy, _: copy._forget())

    @property
    def is_used(self) -> bool:
        """Whether any column has codes. A GPU is asked once, not in each step."""
        if not self._knows_columns:
            self.columns = (self.bounds[0, :, 0] != NO_BOUND).nonzero()[:, 0]
            self._knows_columns = True
        return len(self.columns) > 0

    def _forget(self) -> None:
        self._knows_columns = False

    def fit(self, x: torch.Tensor) -> None:
        """Takes the values of the networks' input `(n, D)`."""
        for number, column in enumerate(x.T):
            bounds = bounds_of_values(column)
            self.bounds[:, number, : bounds.shape[1]] = bounds
        self.fitted.fill_(True)
        self._forget()

    def leave_out(self) -> None:
        """Says that no column has codes, whatever the data hold."""
        self.fitted.fill_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what columns `(B, D)` add, `(B, W)`, if codes are used."""
        x, weight = x[:, self.columns, None], self.weight[self.columns]
        lower, upper = self.bounds[0, self.columns], self.bounds[1, self.columns]
        codes = (x > lower) & (x <= upper)  # (B, C, 9) of the C columns that have codes
        added: torch.Tensor = codes.flatten(1).to(x.dtype) @ weight.flatten(0, 1)
        return added
