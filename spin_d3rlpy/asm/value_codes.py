"""Codes of values that recur, by which a network tells each of them apart at once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

MOST_VALUES = 9  # of a column that have codes
LEAST_SHARE = 0.05  # of rows that hold a value which has a code, where there are more
SAME = 1e-5  # of scaled numbers: a GPU scales a little differently
NO_VALUE = 1e30  # files hold finite numbers


def recurring_values(column: torch.Tensor) -> torch.Tensor:
    """Returns values of a column `(n,)` that need codes, in order.

    All if there are three to nine, else those in 5 % of rows, the nine most frequent at most. Two
    values or one need none.
    """
    values: torch.Tensor
    values, counts = column.unique(return_counts=True)
    if len(values) <= 2:
        return values[:0]
    if len(values) <= MOST_VALUES:
        return values
    most = counts.topk(MOST_VALUES).indices.sort().values
    return values[most[counts[most] >= LEAST_SHARE * len(column)]]


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

    values: torch.Tensor  # (D, 9) that have codes; `NO_VALUE` where there are fewer
    columns: torch.Tensor  # numbers of those that have codes
    fitted: torch.Tensor  # (1,): whether they are known

    def __init__(self, observation_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(observation_size, MOST_VALUES, width))
        no_values = torch.full((observation_size, MOST_VALUES), NO_VALUE)
        self.register_buffer("values", no_values)
        self.register_buffer("fitted", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("columns", torch.empty(0, dtype=torch.int64), persistent=False)
        self._knows_columns = False  # since weights were loaded
        # A copy's hook is given the copy.
        cast(Any, self).register_load_state_dict_post_hook(lambda copy, _: copy._forget())

    @property
    def is_used(self) -> bool:
        """Whether any column has codes. A GPU is asked once, not in each step."""
        if not self._knows_columns:
            self.columns = (self.values[:, 0] != NO_VALUE).nonzero()[:, 0]
            self._knows_columns = True
        return len(self.columns) > 0

    def _forget(self) -> None:
        self._knows_columns = False

    def fit(self, x: torch.Tensor) -> None:
        """Takes the values of the networks' input `(n, D)`."""
        for column, values in zip(x.T, self.values, strict=True):
            recurring = recurring_values(column)
            values[: len(recurring)] = recurring
        self.fitted.fill_(True)
        self._forget()

    def leave_out(self) -> None:
        """Says that no column has codes, whatever the data hold."""
        self.fitted.fill_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what columns `(B, D)` add, `(B, W)`, if codes are used."""
        x, values, weight = x[:, self.columns], self.values[self.columns], self.weight[self.columns]
        codes = (x[..., None] - values).abs() <= SAME  # (B, C, 9) of the C columns that have codes
        added: torch.Tensor = codes.flatten(1).to(x.dtype) @ weight.flatten(0, 1)
        return added
