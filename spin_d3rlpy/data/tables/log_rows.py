"""Rows of a logged table as episodes: their order, their final states, where they end."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.tables.cells import Locale, is_empty, read_order
from spin_d3rlpy.data.tables.columns import Bools, Column, Name
from spin_d3rlpy.data.tables.preparation import EpisodeRows, index_type
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, shown

LastStep = Literal["keep", "drop"]
Rows = NDArray[np.int64]


class EpisodeIds:
    """Which episode each row is of.

    Args:
        columns: that identify an episode together.

    Attributes:
        number: of each row's episode in the order of their first rows, `(rows,)`.
        count: of the episodes.

    Raises:
        InvalidDatasetError: a cell is empty.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        number, ids = _ids(columns[0])
        of_columns = [(number, ids)]
        for column in columns[1:]:
            codes, ids = _ids(column)
            of_columns.append((codes, ids))
            _, number = np.unique(number.astype(np.int64) * len(ids) + codes, return_inverse=True)
        self.count = int(number.max()) + 1
        first = np.empty(self.count, np.int64)
        first[number[::-1]] = np.arange(len(number) - 1, -1, -1)  # the first row is written last
        ranked = np.argsort(first)
        rank = np.empty(self.count, index_type(len(number)))
        rank[ranked] = np.arange(self.count)
        self.number: Rows = rank[number]
        self._names = [(ids, codes[first[ranked]]) for codes, ids in of_columns]

    def name(self, episode: int) -> str:
        """Returns an episode's id as messages show it."""
        ids = [ids[codes[episode]] for ids, codes in self._names]
        return shown(ids[0] if len(ids) == 1 else tuple(ids))

    def in_order(self) -> Rows:
        """Returns rows, episode after episode, each one's in the table's order."""
        return np.argsort(self.number, kind="stable")

    def grouped(self, order: Rows) -> EpisodeRows:
        """Returns the episodes' rows in an order in which each episode's are together."""
        lengths = np.bincount(self.number, minlength=self.count)
        return EpisodeRows(order, np.concatenate([[0], np.cumsum(lengths)]))


def _ids(column: Column) -> tuple[Rows, list[Any]]:
    """Returns the number of each row's id, and the ids."""
    empty = is_empty(column)
    if empty.any():
        row = int(empty.argmax())
        raise InvalidRowError(
            f"Row {row} has no {shown(column.name)} (its cell is {shown(column.cell(row))}), so "
            f"that its episode is not known ({empty.sum():,} such rows). Fill it in, or leave "
            "these rows out.",
            row,
        )
    if column.is_typed or column.is_dates:  # only where the id changes is it looked at
        heads = np.flatnonzero(np.concatenate([[True], column.values[1:] != column.values[:-1]]))
        lengths = np.diff(heads, append=len(column))
        codes, ids = _numbered(Column(column.name, column.values[heads], empty[heads]))
        return np.repeat(codes.astype(index_type(len(column))), lengths), ids
    return _numbered(column)


def _numbered(column: Column) -> tuple[Rows, list[Any]]:
    codes, cells = column.distinct()
    numbered: dict[Any, int] = {}
    for cell in cells:  # numbers that are equal are one id, text only equals itself
        numbered.setdefault(cell.strip() if isinstance(cell, str) else cell, len(numbered))
    keys = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    return np.array([numbered[key] for key in keys], np.int64)[codes], list(numbered)


def _is_in_order(number: Rows, when: NDArray[Any]) -> bool:
    """Returns whether each episode's rows are together and their times increase."""
    is_same = number[1:] == number[:-1]
    return bool((number[1:] >= number[:-1]).all()) and bool(
        ((when[1:] > when[:-1]) | ~is_same).all()
    )


def rows_of_episodes(
    table: Mapping[Name, Column], episode: Sequence[Name], time: Name | None, locale: Locale
) -> tuple[EpisodeRows, EpisodeIds]:
    """Returns each episode's rows in order, episodes in the order of their first row.

    Args:
        table: columns by name.
        episode: columns that identify an episode.
        time: column that orders an episode's rows; None: they are consecutive and in order.
        locale: how the column of time writes numbers and dates.

    Raises:
        InvalidDatasetError: there are no rows, an id or time is empty, an episode has a time twice,
            or appears again after others without a column of time.
    """
    columns = [table[name] for name in episode]
    if not len(columns[0]):
        raise InvalidDatasetError("The table has no rows.")
    ids = EpisodeIds(columns)
    if time is None:
        order = np.arange(len(ids.number))
        # Episodes are numbered by their first rows, so that an earlier number is a return.
        is_again = ids.number[1:] < ids.number[:-1]
        if is_again.any():
            row = int(is_again.argmax()) + 1
            raise InvalidRowError(
                f"Episode {ids.name(ids.number[row])} appears again in row {row}, after others. "
                "Pass time= to order rows, or sort the table.",
                row,
            )
    else:
        when = read_order(table[time], locale)
        if _is_in_order(ids.number, when):  # as most logs are, and sorting takes time and memory
            return ids.grouped(np.arange(len(ids.number))), ids
        order = np.lexsort((when, ids.number))
        same = (np.diff(ids.number[order]) == 0) & (when[order][1:] == when[order][:-1])
        if same.any():
            episode_number = int(ids.number[order[int(same.argmax())]])
            raise InvalidDatasetError(
                f"Two rows of episode {ids.name(episode_number)} have the same time."
            )
    return ids.grouped(order), ids


def final_states(
    table: Mapping[Name, Column], decisions: Mapping[Name, Bools], episodes: EpisodeRows
) -> Bools:
    """Returns which rows are final states: an episode's last, without all of the decisions.

    Args:
        table: columns by name.
        decisions: names of the columns of actions and reward, and which of their cells are empty.
        episodes: their rows.

    Raises:
        InvalidDatasetError: another row lacks one, or a last one some of them.
    """
    every = np.logical_and.reduce(list(decisions.values()))
    state_only = np.zeros(len(every), bool)
    last = episodes.order[episodes.starts[1:] - 1]
    state_only[last] = every[last]
    wrong = [(int(w.argmax()), n) for n, e in decisions.items() if (w := e & ~state_only).any()]
    if wrong:
        row, name = min(wrong, key=lambda place: place[0])
        cell = table[name].cell(row)
        mark = (
            f" (its cell is {shown(cell)}; if that is a choice, list it in choices=)"
            if isinstance(cell, str) and cell.strip()
            else ""
        )
        raise InvalidRowError(
            f"Row {row} has no {shown(name)}{mark}. Only an episode's last row may leave "
            "actions and reward empty, and then all of them.",
            row,
        )
    return state_only


@dataclasses.dataclass(frozen=True)
class Steps:
    """What enters the dataset: episodes with a step or more.

    Attributes:
        rows: of the table, one for each step, `(n,)`.
        states: rows of the table, one for each observation, `(sum(T + 1),)`; where the state after
            the last step is not known, or does not matter, the last step's row again.
        lengths: T of each episode.
        over: whether it ended for good, `(episodes,)`.
        unknown: number of episodes in the table whose state after the last step is not known.
    """

    rows: Rows
    states: Rows
    lengths: Rows
    over: Bools
    unknown: int


def cut(
    episodes: EpisodeRows,
    ids: EpisodeIds,
    state_only: Bools,
    ended: Bools,
    terminal: Name | bool,
    last_step: LastStep,
) -> Steps:
    """Returns which rows are steps and states of which episodes.

    Args:
        episodes: the table's rows.
        ids: names of episodes, for errors.
        state_only: which rows are final states, `(rows,)`.
        ended: which rows end their episode by the column of ends, `(rows,)`.
        terminal: the column of ends, or one answer for all.
        last_step: what to do with a last step after which the state is not known.

    Raises:
        InvalidDatasetError: an episode continues after its end.
    """
    order, number = episodes.order, index_type(len(episodes.order) + len(episodes.lengths))
    starts, lengths = episodes.starts[:-1].astype(number), episodes.lengths.astype(number)
    has_final = state_only[order[episodes.starts[1:] - 1]]
    steps = lengths - has_final
    episode_of = np.repeat(np.arange(len(lengths), dtype=number), lengths)
    position = np.arange(len(order), dtype=number)
    position -= starts[episode_of]
    # A flag may stand in the last step's row or in that of the final state.
    is_earlier = position < np.maximum(steps - 1, 0)[episode_of]
    ends_here = ended[order]
    if not isinstance(terminal, bool) and (ends_here & is_earlier).any():
        place = int((ends_here & is_earlier).argmax())
        raise InvalidRowError(
            f"Episode {ids.name(episode_of[place])} continues after row {order[place]}, where "
            f"{shown(terminal)} ends it.",
            int(order[place]),
        )
    over = np.zeros(len(lengths), bool)
    over[episode_of[ends_here & ~is_earlier]] = True
    unknown = ~has_final & ~over
    if last_step == "drop":
        steps = steps - unknown
    else:
        over = over | unknown
    kept = steps > 0
    is_step = position < steps[episode_of]
    del position, episode_of  # as there may be very many rows
    rows_of_states = np.where(kept, steps + 1, 0)
    state_of = np.repeat(np.arange(len(lengths), dtype=number), rows_of_states)
    place_of = np.arange(len(state_of), dtype=number)
    place_of -= (np.cumsum(rows_of_states) - rows_of_states).astype(number)[state_of]
    # What follows a terminal step is not looked at: its own state stands there.
    np.minimum(place_of, (lengths - 1)[state_of], out=place_of)
    place_of += starts[state_of]
    return Steps(order[is_step], order[place_of], steps[kept], over[kept], int(unknown.sum()))


def report(
    paying: Bools,
    state_only: Bools,
    steps: Steps,
    episodes: int,
    shifts: Mapping[Name, float],
) -> None:
    """Says what was read and left out, or raises InvalidDatasetError if no reward is left.

    Args:
        paying: which rows have a reward other than 0, `(rows,)`; none in rows of final states.
        state_only: which rows are final states, `(rows,)`.
        steps: what enters.
        episodes: in the table.
        shifts: numbers that were subtracted for float32's sake, by column.
    """
    entered: NDArray[np.bool_] = np.zeros(len(paying), bool)
    entered[steps.rows] = True
    if paying.any() and not paying[entered].any():
        raise InvalidDatasetError(
            f"All {paying.sum():,} rewards other than 0 stand in last steps that would be left "
            "out, because the state after them is unknown. Pass last_step='keep', name the column "
            "of ends in terminal=, or add a last row with each episode's final state."
        )
    left_out = ~entered & ~state_only
    print(
        f"Read {len(paying):,} rows of {episodes:,} episodes, {state_only.sum():,} of them final "
        f"states without an action. Unknown state after the last step: {steps.unknown:,} episodes. "
        f"Left out: {left_out.sum():,} rows, {(left_out & paying).sum():,} rewards other than 0, "
        f"{episodes - len(steps.lengths):,} episodes.",
        file=sys.stderr,
    )
    if shifts:
        subtracted = ", ".join(f"{number:.17g} from {shown(n)}" for n, number in shifts.items())
        print(
            f"Subtracted, because float32 would make different values equal: {subtracted}. "
            "predict_table does the same; states for predict need it done.",
            file=sys.stderr,
        )
