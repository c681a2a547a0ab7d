"""What a user says of a table's columns, checked before the table is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, cast

import numpy as np

from spin_d3rlpy.data.tables.cells import PLAIN, Locale
from spin_d3rlpy.data.tables.choice_values import Values
from spin_d3rlpy.data.tables.columns import Name, as_python, is_null
from spin_d3rlpy.data.tables.texts import DECIMALS
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError, listed, shown
from spin_d3rlpy.nvec import check_nvec

_LONGEST = 1000  # characters of a choice; a policy file keeps the choices


@dataclasses.dataclass(frozen=True)
class TableArguments:
    """Names of columns, as of `from_table`, and how columns of the state are read."""

    observations: list[Name]
    actions: list[Name]
    rewards: dict[str, Name]  # columns by the name of the reward
    episode: list[Name]
    time: Name | None
    terminal: Name | bool
    categories: list[Name]
    subtract: dict[Name, float]
    decimal: str | Mapping[Name, str] | None
    dates: str | Mapping[Name, str] | None
    keep: list[Name]

    @classmethod
    def checked(
        cls,
        *,
        observations: object,
        actions: object,
        reward: object,
        rewards: object,
        episode: object,
        time: object,
        terminal: object,
        categories: object,
        subtract: object,
        decimal: object,
        dates: object,
        keep: object,
    ) -> TableArguments:
        """Returns the arguments of `from_table`.

        Raises:
            InvalidDatasetError: a name is no text or whole number, or given twice, or the state
                would hold the reward, an action or the end.
            ValueError: `categories`, `subtract`, `decimal` or `dates` fit no column.
        """
        several = isinstance(episode, Iterable) and not isinstance(episode, str | bytes)
        state = names_of("observations=", observations, repeats=True)
        arguments = cls(
            observations=state,
            actions=names_of("actions=", actions),
            rewards=_rewards(reward, rewards),
            episode=names_of("episode=", episode) if several else [name_of(episode)],
            time=None if time is None else name_of(time),
            terminal=bool(terminal) if _is_bool(terminal) else name_of(terminal),
            categories=_categories(categories, state),
            subtract=_subtracted(subtract, state),
            decimal=_by_column("decimal=", decimal),
            dates=_by_column("dates=", dates),
            keep=names_of("keep=", keep) if keep else [],
        )
        arguments._check_roles()
        arguments._check_locales()
        return arguments

    @property
    def columns(self) -> list[Name]:
        """All columns that are read."""
        names = [*self.observations, *self.actions, *self.rewards.values()]
        names += [*self.episode, *self.keep]
        names += [] if self.time is None else [self.time]
        return names if isinstance(self.terminal, bool) else [*names, self.terminal]

    def plain_numbers(self, wanted: Sequence[Name]) -> list[Name]:
        """Returns columns whose text counts for nothing but the numbers that it writes.

        Args:
            wanted: all columns that are read; one that is there twice has two meanings.
        """
        roles = [*self.observations, *self.rewards.values(), *self.keep]
        names = [*self.actions, *self.episode, *self.categories]
        names += [] if isinstance(self.terminal, bool) else [self.terminal]
        names += set(wanted) - {*self.columns}  # of masks
        roles += [] if self.time is None else [self.time]
        return [n for n in roles if n not in names and self.locale(n) == PLAIN]

    def locale(self, name: Name | None) -> Locale:
        """Returns how a column writes numbers and dates."""

        def of_column(of: str | Mapping[Name, str] | None) -> str | None:
            if not isinstance(of, Mapping):
                return of
            return None if name is None else of.get(name)

        return Locale(of_column(self.decimal), of_column(self.dates))

    def _check_roles(self) -> None:
        paid = self.rewards.values()
        leaks = {**dict.fromkeys(paid, "the reward"), **dict.fromkeys(self.actions, "an action")}
        if not isinstance(self.terminal, bool):
            leaks.setdefault(self.terminal, "the end")
        for name in self.observations:
            if name in leaks:
                raise InvalidDatasetError(
                    f"Expected observations= to hold what was known before the decision, but "
                    f"{shown(name)} is {leaks[name]}, which the state would tell in advance. Leave "
                    "it out; what happened in earlier rows needs columns of its own."
                )
        for name in paid:
            if name in self.actions:
                raise InvalidDatasetError(f"Column {shown(name)} is both reward and action.")

    def _check_locales(self) -> None:
        for argument, given in (("decimal=", self.decimal), ("dates=", self.dates)):
            unknown = [n for n in given if n not in self.columns] if isinstance(given, dict) else []
            if unknown:
                raise ValueError(
                    f"Expected {argument} to name columns of the table that are read, got "
                    f"{listed(map(shown, unknown))}. These are read: {listed(self.columns)}."
                )
        marks = self.decimal.values() if isinstance(self.decimal, Mapping) else [self.decimal]
        for mark in marks:
            if mark is not None and mark not in DECIMALS:
                raise ValueError(f"Expected decimal= ',' or '.', got {shown(mark)}.")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def name_of(name: object) -> Name:
    """Returns a column's name.

    Raises:
        InvalidDatasetError: neither text nor a whole number.
    """
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise InvalidDatasetError(
        f"Expected names of columns as text or whole numbers, got {shown(name)} of type "
        f"{type(name).__name__}. Rename the column."
    )


def names_of(argument: str, names: object, repeats: bool = False) -> list[Name]:
    """Returns a list of columns' names, each there once unless `repeats`.

    Raises:
        InvalidDatasetError: it is no list, empty, or has a name twice.
    """
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise InvalidDatasetError(
            f"Expected {argument} to be a list of names of columns, got {shown(names)}."
        )
    columns = [name_of(name) for name in names]
    if not columns or (not repeats and len(set(columns)) < len(columns)):
        twice = [name for name in columns if columns.count(name) > 1]
        wrong = f"{shown(twice[0])} twice" if twice else "none"
        raise InvalidDatasetError(
            f"Expected {argument} to name one or more different columns, got {wrong}."
        )
    return columns


def _rewards(reward: object, rewards: object) -> dict[str, Name]:
    """Returns the columns of rewards by the rewards' names; a single one has its column's."""
    if (reward is None) == (rewards is None):
        raise ValueError(
            "Expected reward= with a column, or rewards= with several by name, such as "
            f'{{"revenue": "eur", "complaints": "n"}}; got {shown(reward)} and {shown(rewards)}.'
        )
    if rewards is None:
        return {str(reward): name_of(reward)}
    named = {} if not isinstance(rewards, Mapping) else dict(rewards)
    if not named or not all(isinstance(name, str) and name.strip() for name in named):
        raise ValueError(
            "Expected rewards= to map names to columns, such as "
            f'{{"revenue": "eur", "complaints": "n"}}, got {shown(rewards)}.'
        )
    names_of("rewards=", named.values())  # a column twice would be one reward by two names
    return {str(name): name_of(column) for name, column in named.items()}


def _categories(categories: object, state: Sequence[Name]) -> list[Name]:
    is_list = isinstance(categories, Iterable) and not isinstance(categories, str)
    names = list(categories) if is_list and isinstance(categories, Iterable) else []
    if not (is_list or categories is None) or any(name not in state for name in names):
        raise ValueError(
            f"Expected categories= to be a list of columns of the state, got {shown(categories)}. "
            f"Columns of the state: {listed(state)}."
        )
    return [name_of(name) for name in names]


def _subtracted(subtract: object, state: Sequence[Name]) -> dict[Name, float]:
    if subtract is None:
        return {}
    numbers: dict[Any, Any] = dict(subtract) if isinstance(subtract, Mapping) else {"": subtract}
    for name, number in numbers.items():
        try:
            numbers[name] = float(number)
        except (TypeError, ValueError, OverflowError):
            numbers[name] = math.nan
        if name not in state or not math.isfinite(numbers[name]):
            raise ValueError(
                "Expected subtract= to map columns of the state to finite numbers, got "
                f"{shown(subtract)}. Columns of the state: {listed(state)}."
            )
    return {name_of(name): number for name, number in numbers.items()}


def _by_column(argument: str, given: object) -> str | dict[Name, str] | None:
    """Returns text for all columns, or by column."""
    by_name = {name_of(n): text for n, text in given.items()} if isinstance(given, Mapping) else {}
    if not all(isinstance(text, str) and text for text in by_name.values()) or not (
        given is None or isinstance(given, Mapping) or (isinstance(given, str) and given)
    ):
        raise ValueError(
            f"Expected {argument} to be text, or to map columns to text, got {shown(given)}."
        )
    return by_name if isinstance(given, Mapping) else given


def choice_lists(choices: object) -> dict[Name, list[Any]]:
    """Returns the values of action columns in order, by the column's name.

    Raises:
        NvecMismatchError: `choices` does not map columns to lists of different values that a file
            can keep: text, numbers, true and false.
    """
    if choices is None:
        return {}
    if not isinstance(choices, Mapping):
        raise NvecMismatchError(
            "Expected choices= to map columns to their values in order, such as "
            f'{{"dose": [0, 50, 100]}}, got {shown(choices)}. If the columns hold the numbers 0, '
            "1, 2, ..., pass how many there are of each as nvec= instead."
        )
    return {
        name_of(name): _different(f"the choices of {shown(name)}", values)
        for name, values in choices.items()
    }


def values_of(argument: str, values: object, terminal: Name | bool) -> list[Any] | None:
    """Returns the values that end an episode; None if it was not given.

    Raises:
        ValueError: no list of text, numbers, true and false, or there is no column of ends.
    """
    if values is None:
        return None
    if isinstance(terminal, bool) or isinstance(values, str):
        raise ValueError(
            f"Expected {argument} to be a list of values of a column named in terminal=, got "
            f"{shown(values)} and terminal={terminal!r}."
        )
    return _plain_values(argument, values)


def _different(what: str, values: object) -> list[Any]:
    plain = _plain_values(what, values)
    repeated = Values(plain).repeated()
    if repeated is not None:
        raise NvecMismatchError(
            f"Expected {what} to be different values, got {shown(repeated)} twice: "
            f"{listed(map(shown, plain))}."
        )
    return plain


def _plain_values(what: str, values: object) -> list[Any]:
    is_list = isinstance(values, Iterable) and hasattr(values, "__len__")
    if isinstance(values, str | bytes | Mapping | Set) or not is_list:
        raise NvecMismatchError(
            f"Expected {what} to be a list of its values in order, got {shown(values)}."
        )
    plain: list[Any] = []
    for given in cast(Iterable[object], values):
        value = as_python(given)
        value = value.as_py() if hasattr(value, "as_py") else value  # of pyarrow
        if not _can_be_kept(value):
            raise NvecMismatchError(
                f"Expected {what} to be text, finite numbers, or true and false, got "
                f"{shown(given)} of type {type(given).__name__}. Empty cells are no choice, and "
                "dates are to be written as text, in the table, too."
            )
        plain.append(str(value) if isinstance(value, str) else value)
    return plain


def _can_be_kept(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value.strip()) <= _LONGEST
    if is_null(value) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def sizes_of(
    actions: Sequence[Name], choices: Mapping[Name, Sequence[Any]], nvec: Sequence[int] | None
) -> list[int]:
    """Returns the number of choices of each action column.

    Raises:
        NvecMismatchError: `nvec`, `actions` and `choices` disagree.
    """
    known = {name: len(values) for name, values in choices.items()}
    if nvec is not None and not isinstance(nvec, Iterable):
        raise NvecMismatchError(f"Expected nvec= to be a list of whole numbers, got {shown(nvec)}.")
    sizes = [known.get(name, 0) for name in actions] if nvec is None else list(nvec)
    together = dict(zip(actions, sizes, strict=False))
    if len(sizes) != len(actions) or 0 in sizes or not known.items() <= together.items():
        counts = ", ".join(f"{n} of {shown(name)}" for name, n in known.items())
        raise NvecMismatchError(
            f"Expected the choices of each of {shown(list(actions))}: its values in order in "
            "choices= or, if they are numbered 0, 1, 2, ..., how many in nvec=. Got "
            f"{counts or 'none'} in choices= and nvec={nvec}."
        )
    return check_nvec(sizes)
