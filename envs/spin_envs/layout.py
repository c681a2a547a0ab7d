"""What the slots and choices of an action are, and where an observation describes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NONE = -1  # a column: this one has no such feature

Columns = tuple[tuple[int, ...], ...]
Features = tuple[tuple[float, ...], ...]
PairColumns = tuple[Columns, ...]


@dataclasses.dataclass(frozen=True)
class ActionLayout:
    """What is known of the things that an action's slots and choices stand for.

    Couriers choose orders, places show items, agents pick targets: slots and choices have features,
    some in the observation, some known for good. A network that is told of them scores every slot's
    every choice by the features of both, with the same few weights for all, instead of learning for
    each pair which numbers belong together. Agents that have the same few moves are slots whose
    choices have no features: one network then maps a slot's features to its scores of all choices.

    All fields may be left out; columns that belong to no slot, choice, pair or object are context.

    Args:
        shared_choices: all slots choose among the same K things.
        slot_columns: `(N, f)`: the observation's columns that hold the features of each slot.
        choice_columns: `(K, g)`: those of each choice; -1 where a choice lacks a feature.
        slot_features: `(N, f')` features of the slots that never change and are not observed.
        choice_features: `(K, g')` likewise of the choices.
        compared: pairs `(j, k)` of an observed feature j of slots and an observed feature k of
            choices that measure the same thing in the same unit, such as a coordinate: networks see
            their differences.
        pair_columns: `(N, K, p)`: the observation's columns that hold the features of each slot
            with each choice, such as a courier's travel time to an order; -1 where a pair lacks
            one.
        object_columns: `(M, g)`: those of things that slots look at and that are no choices, such
            as the items on a map where agents move. Their first features and the observed ones of
            slots measure the same things in the same unit, such as coordinates: networks see their
            differences. Their order does not matter to networks.
        choice_identity: each of the K things is the same in every state, such as an item of a
            catalog or a drug: networks learn what is particular to it besides its features. False
            where number k is another thing each time, such as the orders of the moment; then things
            with the same features are alike, and a model of few of them serves many.

    Raises:
        ValueError: fields contradict each other.
    """

    shared_choices: bool = False
    slot_columns: Columns = ()
    choice_columns: Columns = ()
    slot_features: Features = ()
    choice_features: Features = ()
    compared: tuple[tuple[int, int], ...] = ()
    pair_columns: PairColumns = ()
    choice_identity: bool = False
    object_columns: Columns = ()

    def __post_init__(self) -> None:
        for name in ("slot_columns", "choice_columns", "compared", "object_columns"):
            object.__setattr__(self, name, _table(name, getattr(self, name), int))
        for name in ("slot_features", "choice_features"):
            object.__setattr__(self, name, _table(name, getattr(self, name), float))
        object.__setattr__(self, "pair_columns", _pair_table(self.pair_columns))
        for whose, columns, features in (
            ("slot", self.slot_columns, self.slot_features),
            ("choice", self.choice_columns, self.choice_features),
        ):
            if columns and features and len(columns) != len(features):
                raise ValueError(
                    f"Expected {whose}_columns and {whose}_features of the same number of {whose}s,"
                    f" got {len(columns)} and {len(features)}."
                )
        if self.has_choice_features and not self.shared_choices:
            raise ValueError(
                "Expected shared_choices=True with features of choices: they describe the K things "
                "that all slots choose among."
            )
        if self.choice_identity and not self.shared_choices:
            raise ValueError(
                "Expected shared_choices=True with choice_identity: it is about the K things that "
                "all slots choose among."
            )
        if self.object_columns and (self.has_choice_features or not self.slot_columns):
            raise ValueError(
                "Expected object_columns with slot_columns and without features of choices: they "
                "are what slots look at whose choices are moves."
            )
        for j, k in self.compared:
            if not (0 <= j < self.n_slot_columns and 0 <= k < self.n_choice_columns):
                raise ValueError(
                    f"compared names features {j} of slots and {k} of choices; there are "
                    f"{self.n_slot_columns} and {self.n_choice_columns} in the observation."
                )

    @property
    def has_choice_features(self) -> bool:
        """Whether choices have features, of their own or with a slot: a network scores pairs."""
        return bool(self.choice_columns or self.choice_features or self.pair_columns)

    @property
    def has_slot_features(self) -> bool:
        """Whether slots have features, by which a network can tell them from each other."""
        return bool(self.slot_columns or self.slot_features or self.pair_columns)

    @property
    def has_features(self) -> bool:
        """Whether one network can serve all slots, by the features of choices or of slots."""
        return self.has_choice_features or (self.shared_choices and self.has_slot_features)

    @property
    def n_slot_columns(self) -> int:
        """Observed features of a slot (f)."""
        return len(self.slot_columns[0]) if self.slot_columns else 0

    @property
    def n_choice_columns(self) -> int:
        """Observed features of a choice (g)."""
        return len(self.choice_columns[0]) if self.choice_columns else 0

    @property
    def n_pair_columns(self) -> int:
        """Observed features of a pair (p)."""
        return len(self.pair_columns[0][0]) if self.pair_columns else 0

    @property
    def _pair_rows(self) -> Columns:
        """The columns of all pairs, `(N * K, p)`."""
        return tuple(columns for row in self.pair_columns for columns in row)

    def context_columns(self, observation_size: int) -> list[int]:
        """Returns the columns that belong to no slot, choice, pair or object."""
        rows = (*self.slot_columns, *self.choice_columns, *self._pair_rows, *self.object_columns)
        taken = {column for row in rows for column in row}
        return [column for column in range(observation_size) if column not in taken]

    def check(self, observation_size: int, nvec: Sequence[int]) -> None:
        """Raises ValueError if it does not describe such observations and actions."""
        n, sizes = len(nvec), set(nvec)
        if self.shared_choices and len(sizes) > 1:
            raise ValueError(
                "shared_choices says that all slots choose among the same things, but they have "
                f"from {min(sizes)} to {max(sizes)} choices."
            )
        k = max(sizes)
        for name, expected in (
            ("slot_columns", n),
            ("slot_features", n),
            ("choice_columns", k),
            ("choice_features", k),
        ):
            given = getattr(self, name)
            if given and len(given) != expected:
                whose = "slot" if name.startswith("slot") else "choice"
                raise ValueError(
                    f"Expected {name} to have {expected} rows, one of each {whose}, got "
                    f"{len(given)}."
                )
        if self.pair_columns and (len(self.pair_columns), len(self.pair_columns[0])) != (n, k):
            raise ValueError(
                f"Expected pair_columns to have {n} rows, one of each slot, of {k} choices, got "
                f"{len(self.pair_columns)} of {len(self.pair_columns[0])}."
            )
        tables = [
            ("slot_columns", 0, self.slot_columns),
            ("choice_columns", NONE, self.choice_columns),
            ("object_columns", 0, self.object_columns),
            *((f"pair_columns[{i}]", NONE, row) for i, row in enumerate(self.pair_columns)),
        ]
        for name, least, rows in tables:
            for row, columns in enumerate(rows):
                for column in columns:
                    if not least <= column < observation_size:
                        raise ValueError(
                            f"{name}[{row}] names column {column}; observations have the columns "
                            f"0 to {observation_size - 1}."
                        )

    def alike(self, observation_size: int) -> NDArray[np.int64]:
        """Returns a group's number for each column `(obs,)`: those of one feature are in one group.

        Scaled alike, things stay comparable, and a model of few serves many.
        """
        group = np.arange(observation_size)
        by_slot = [list(column) for column in zip(*self.slot_columns, strict=True)]
        by_choice = [list(column) for column in zip(*self.choice_columns, strict=True)]
        by_pair = [list(column) for column in zip(*self._pair_rows, strict=True)]
        by_object = [list(column) for column in zip(*self.object_columns, strict=True)]
        for j, k in self.compared:
            by_slot[j] += by_choice[k]
            by_choice[k] = []
        for of_slots, of_objects in zip(by_slot, by_object, strict=False):
            of_slots += of_objects
            of_objects.clear()
        for columns in (*by_slot, *by_choice, *by_pair, *by_object):
            of_feature = [column for column in columns if column != NONE]
            if of_feature:
                group[of_feature] = min(of_feature)
        return group

    def by_feature(self, observation_size: int) -> list[list[int]]:
        """Returns each feature's columns: of slots, choices, pairs, objects, each of context."""
        slots, objects = (
            [list(columns) for columns in zip(*rows, strict=True)]
            for rows in (self.slot_columns, self.object_columns)
        )
        choices, pairs = (
            [
                [column for column in columns if column != NONE]
                for columns in zip(*rows, strict=True)
            ]
            for rows in (self.choice_columns, self._pair_rows)
        )
        context = [[column] for column in self.context_columns(observation_size)]
        return [*slots, *choices, *pairs, *objects, *context]

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ActionLayout:
        """Inverse of `to_dict`; ValueError if it is none."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := content.keys() - known:
            raise ValueError(f"An action's layout has no field {sorted(unknown)[0]!r}.")
        return cls(**content)


def _pair_table(slots: Any) -> PairColumns:
    """Returns the columns of pairs as tuples; each slot has rows of as many choices."""
    if not isinstance(slots, Sequence | np.ndarray):
        raise ValueError(f"Expected pair_columns of each slot and choice, got {slots!r}.")
    table = tuple(_table(f"pair_columns[{i}]", rows, int) for i, rows in enumerate(slots))
    if any(not rows for rows in table) or len({(len(rows), len(rows[0])) for rows in table}) > 1:
        raise ValueError(
            "Expected pair_columns with the same numbers of choices and of features for each slot, "
            f"got {[(len(rows), len(rows[0]) if rows else 0) for rows in table]}."
        )
    return table


def _number(cell: Any, kind: type[int] | type[float]) -> int | float:
    """Returns a number of a kind; a TypeError where that would cut it, or for True and text."""
    if isinstance(cell, bool | np.bool_ | str) or not np.isfinite(cell) or kind(cell) != cell:
        raise TypeError(f"{cell!r} is no {'whole' if kind is int else 'finite'} number")
    return kind(cell)


def _table(name: str, rows: Any, kind: type[int] | type[float]) -> tuple[tuple[Any, ...], ...]:
    """Returns rows of equal length as tuples of numbers of a kind."""
    try:
        table = tuple(tuple(_number(cell, kind) for cell in row) for row in rows)
    except (TypeError, ValueError) as error:
        expected = "numbers that are whole" if kind is int else "numbers"
        raise ValueError(f"Expected {name} to be rows of {expected}, got {rows!r:.200}.") from error
    lengths = {len(row) for row in table}
    if len(lengths) > 1:
        raise ValueError(
            f"Expected rows of the same length in {name}, got lengths from {min(lengths)} to "
            f"{max(lengths)}."
        )
    return table
