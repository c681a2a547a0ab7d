"""Codes of columns with few values, by which a network tells each value apart at once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

MOST_VALUES = 9  # of a column that has codes
NO_BOUND = 1e30  # files hold finite numbers


def bounds_between(column: torch.Tensor) -> torch.Tensor | None:
    """Returns the bounds between the values of a column `(n,)`; None if it has more than nine."""
    values = column.unique()
    return None if len(values) > MOST_VALUES else (values[1:] + values[:-1]) / 2.0


class ValueCodes(nn.Module):
    """What each value of columns with few values adds to a layer: one-hot codes and their weights.

    A grid's coordinates, levels and counts are numbers, and what to do can be another thing at each
    of them. A network has to bend a line eight times to see it, and learns what happens by chance
    as well meanwhile. Weights start from 0, and there are none where all columns have many values.

    Args:
        observation_size: columns of the networks' input (D).
        width: of the layer.
    """

    bounds: torch.Tensor  # (D, 8) between values; `NO_BOUND` where there are fewer
    has_codes: torch.Tensor  # (D,): which columns have them
    columns: torch.Tensor  # their numbers
    fitted: torch.Tensor  # (1,): whether they are known

    def __init__(self, observation_size: int, width: int) -> None:
        super().__init__()
        most = MOST_VALUES - 1
        self.weight = nn.Parameter(torch.zeros(observation_size, MOST_VALUES, width))
        self.register_buffer("bounds", torch.full((observation_size, most), NO_BOUND))
        self.register_buffer("has_codes", torch.zeros(observation_size, dtype=torch.bool))
        self.register_buffer("fitted", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("columns", torch.empty(0, dtype=torch.int64), persistent=False)
        self._knows_columns = False  # since weights were loaded
        # A copy's hook is given the copy.
        cast(Any, self).register_load_state_dict_post_hook(lambda copy, _: copy._forget())

    @property
    def is_used(self) -> bool:
        """Whether any column has codes. A GPU is asked once, not in each step."""
        if not self._knows_columns:
            self.columns = self.has_codes.nonzero()[:, 0]
            self._knows_columns = True
        return len(self.columns) > 0

    def _forget(self) -> None:
        self._knows_columns = False

    def fit(self, x: torch.Tensor) -> None:
        """Takes the values of the networks' input `(n, D)`, of which two or fewer need no code."""
        for column, bounds, has_codes in zip(x.T, self.bounds, self.has_codes, strict=True):
            between = bounds_between(column)
            if between is not None and len(between) > 1:
                bounds[: len(between)] = between
                has_codes.fill_(True)
        self.fitted.fill_(True)
        self._forget()

    def leave_out(self) -> None:
        """Says that no column has codes, whatever the data hold."""
        self.fitted.fill_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what columns `(B, D)` add, `(B, W)`, if codes are used.

        A value that is none of a column's counts as the next larger one.
        """
        x, bounds, weight = x[:, self.columns], self.bounds[self.columns], self.weight[self.columns]
        numbers = (x[..., None] > bounds).sum(-1)  # (B, C) of the C columns that have codes
        codes = numbers[..., None] == torch.arange(MOST_VALUES, device=x.device)
        added: torch.Tensor = codes.flatten(1).to(x.dtype) @ weight.flatten(0, 1)
        return added
