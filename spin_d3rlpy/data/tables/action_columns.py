"""Action columns of numbers: what an environment of any action space takes, and doses in bins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from spin_d3rlpy.data.tables.arguments import TableArguments
from spin_d3rlpy.data.tables.cells import read_numbers
from spin_d3rlpy.data.tables.choice_values import read_choices
from spin_d3rlpy.data.tables.columns import Bools, Column, Name
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, NvecMismatchError, shown
from spin_envs import FlatActions, InvalidActionError
from spin_envs.action_numbers import ActionNumbers
from spin_envs.flat_actions import BinsOf, check_bins
from spin_envs.space_json import space_to_dict


@dataclasses.dataclass(frozen=True)
class NumberColumns:
    """Action columns whose numbers become choices by a `FlatActions`, when all are known.

    Attributes:
        names: of the columns, in the order of the space's numbers.
        space: that the numbers are of.
        bins: of its continuous parts.
        is_environments: whether the space is an environment's, so that the `FlatActions` is kept.
    """

    names: list[Name]
    space: Space[Any]
    bins: Any
    is_environments: bool

    @classmethod
    def of(
        cls, actions: Sequence[Name], bins: BinsOf | FlatActions | None, space: Space[Any] | None
    ) -> NumberColumns | None:
        """Returns the columns that are read so; None if there are none.

        Raises:
            NvecMismatchError: not one column for each number of the space.
            ValueError: bad bins, or a space that cannot be converted.
        """
        if space is not None:
            check_bins(space, bins)
            names = ActionNumbers(space).names
            if len(names) != len(actions):
                raise NvecMismatchError(
                    f"Expected actions= to name a column for each of the space's {len(names)} "
                    f"numbers, {', '.join(names)}, in this order, got {shown(list(actions))}."
                )
            return cls(list(actions), space, bins, True)
        if bins is None:
            return None
        if not isinstance(bins, Mapping) or not bins or not set(bins) <= set(actions):
            raise ValueError(
                "Expected bins= to map action columns to a number of bins, Bins or edges, such as "
                f'{{"dose": 5}}, got {shown(bins)}. Action columns: {shown(list(actions))}.'
            )
        binned = [name for name in actions if name in bins]
        one = Box(-np.inf, np.inf, (), np.float64)
        own = Dict([(str(name), one) for name in binned])
        by_name = {str(name): of for name, of in bins.items()}
        check_bins(own, by_name)
        return cls(binned, own, by_name, False)

    def said(self) -> dict[str, Any]:
        """Returns it as JSON holds it, to know the same log again."""
        bins = self.bins
        said = bins.to_dict() if isinstance(bins, FlatActions) else repr(bins)
        return {"space": space_to_dict(self.space), "bins": said}

    def read(
        self, table: Mapping[Name, Column], arguments: TableArguments, state_only: Bools
    ) -> tuple[FlatActions, NDArray[np.int64]]:
        """Returns what makes choices of the columns, and choices `(rows, columns)`, 0 if skipped.

        Raises:
            InvalidDatasetError: a cell holds no number of the space; the text names row and column.
        """
        numbers = np.stack(
            [
                read_numbers(table[name], arguments.locale(name), is_state=False)
                for name in self.names
            ],
            axis=1,
        )
        rows = np.flatnonzero(~state_only)
        decided = numbers[rows]
        if not np.isfinite(decided).all():
            row, slot = (int(i) for i in np.argwhere(~np.isfinite(decided))[0])
            column = table[self.names[slot]]
            raise InvalidRowError(
                f"Row {rows[row]} has {shown(column.name)} = {shown(column.cell(int(rows[row])))}, "
                "which is no finite number. Correct it, or leave the episode out.",
                int(rows[row]),
            )
        try:
            actions = FlatActions.made(self.space, self.bins, decided)
            choices = np.zeros(numbers.shape, np.int64)
            choices[rows] = actions.choices(decided)
        except InvalidActionError as error:
            raise InvalidDatasetError(
                f"The table's actions are not of the space. {error}"
            ) from error
        return actions, choices


def read_actions(
    table: Mapping[Name, Column],
    arguments: TableArguments,
    values: Mapping[Name, list[Any]],
    numbers: NumberColumns | None,
    state_only: Bools,
) -> tuple[list[NDArray[np.int64]], list[list[Any]], FlatActions | None]:
    """Reads a table's actions.

    Args:
        table: columns by name.
        arguments: of `from_table`.
        values: of the choices, by column, but for those that are read as numbers.
        numbers: these.
        state_only: which rows are final states, `(rows,)`.

    Returns:
        Of each action column its choices `(rows,)` and their values, and what an environment's
        actions are made by, if that is known.
    """
    read: dict[Name, NDArray[np.int64]] = {}
    known, kept = dict(values), None
    if numbers is not None:
        actions, choices = numbers.read(table, arguments, state_only)
        for slot, name in enumerate(numbers.names):
            read[name] = choices[:, slot]
            known[name] = [actions.value(slot, k) for k in range(int(actions.nvec[slot]))]
        kept = actions if numbers.is_environments else None
    for name in arguments.actions:
        if name not in read:
            locale = arguments.locale(name)
            read[name] = read_choices(table[name], known[name], state_only, locale)
    columns = arguments.actions
    return [read[name] for name in columns], [known[name] for name in columns], kept
