"""Actions of any space as slots of one `MultiDiscrete` action, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from spin_envs.action_bins import ActionBins, Bins
from spin_envs.action_grid import bounds_of, check_action
from spin_envs.action_masks import allowed_rows
from spin_envs.action_numbers import ActionNumbers, Rows
from spin_envs.errors import InvalidActionError
from spin_envs.space_json import space_from_dict, space_to_dict

OneBins: TypeAlias = int | Sequence[float] | Bins
# Of all dimensions, one each, or by the names of slots or of what they are in.
BinsOf: TypeAlias = int | Bins | Sequence[int | Bins] | Mapping[str, OneBins]


class FlatActions:
    """Actions of a space of any nesting as slots of one `MultiDiscrete` action, and back.

    `Discrete`, `MultiBinary` and `MultiDiscrete` parts, of any shape and start, are kept exactly:
    each number is a slot. Each dimension of a `Box` becomes a slot whose choices are bins.

    Args:
        space: `Discrete`, `MultiBinary`, `MultiDiscrete`, `Box`, or a `Dict` or `Tuple` of these or
            of further ones.
        bins: of the `Box` parts' dimensions: a number or `Bins` for all; one each, in the order of
            their slots; or by name, where `"stick/0"` is one slot and `"stick"` all in it. Of a
            name it may also be the bins' edges, such as `[-1.0, -0.1, 0.1, 1.0]`.
        log: logged actions, by which bins are made: a list of the space's actions, or an array of
            their numbers `(T, N)`.

    Attributes:
        space: the space.
        names: of the N slots: keys and positions that lead to them, such as `arm/1`.
        nvec: number of choices of each slot, `(N,)`.

    Raises:
        ValueError: a part that cannot be converted, or a `Box` without bins or with bad ones; the
            text says where, such as `action["arm"][1]`.
        InvalidActionError: a logged action is not in the space.
    """

    def __init__(
        self,
        space: Space[Any],
        bins: BinsOf | None = None,
        log: Sequence[Any] | NDArray[Any] | None = None,
    ) -> None:
        numbers = ActionNumbers(space)
        rows = None
        if log is not None:
            is_rows = isinstance(log, np.ndarray) and log.shape[1:] == (len(numbers.names),)
            rows = np.asarray(log, np.float64) if is_rows else numbers.of_actions(list(log))
            _check_finite(numbers, rows)
        self._set(numbers, _divided(numbers, bins, rows))

    def _set(self, numbers: ActionNumbers, bins: ActionBins) -> None:
        self._numbers, self._bins = numbers, bins
        self.space, self.names = numbers.space, numbers.names
        self._binned = _binned(numbers)
        self._starts = np.concatenate([part.starts for part in numbers.parts])
        self.nvec = np.concatenate([part.nvec for part in numbers.parts])
        self.nvec[self._binned] = bins.nvec

    @classmethod
    def made(
        cls,
        space: Space[Any],
        bins: BinsOf | FlatActions | None = None,
        log: Sequence[Any] | NDArray[Any] | None = None,
    ) -> FlatActions:
        """Returns a new one, or `bins` if that is one of the same space; errors as of both."""
        if not isinstance(bins, FlatActions):
            return cls(space, bins, log)
        if bins.space != space:
            raise ValueError(
                f"Expected actions of {bins.space}, as the given bins have, got {space}."
            )
        return bins

    @property
    def is_exact(self) -> bool:
        """Whether nothing is binned."""
        return not self._binned.any()

    @property
    def flat_space(self) -> MultiDiscrete:
        """The space of the slots' choices."""
        return MultiDiscrete(self.nvec)

    def flatten(self, action: Any) -> NDArray[np.int64]:
        """Returns an action of the space as choices `(N,)`; raises InvalidActionError."""
        return np.asarray(self.flatten_all([action])[0])

    def flatten_all(self, actions: Sequence[Any]) -> NDArray[np.int64]:
        """Returns T actions as choices `(T, N)`; raises InvalidActionError."""
        return self.choices(self._numbers.of_actions(actions))

    def choices(self, rows: Rows) -> NDArray[np.int64]:
        """Returns actions' numbers `(T, N)`, in the slots' order, as choices `(T, N)`.

        Raises:
            InvalidActionError: a number is not in the space, or not finite where it is binned.
        """
        _check_finite(self._numbers, rows)
        choices = rows - self._starts
        wrong = (choices != np.floor(choices)) | (choices < 0) | (choices >= self.nvec)
        wrong[:, self._binned] = False
        if wrong.any():
            row, slot = (int(i) for i in np.argwhere(wrong)[0])
            first = int(self._starts[slot])
            raise InvalidActionError(
                f"Expected {self._numbers.places[slot]} to be a whole number from {first} to "
                f"{first + int(self.nvec[slot]) - 1}, got {rows[row, slot]:g} (action {row})."
            )
        choices[:, self._binned] = self._bins.choices(rows[:, self._binned])
        return np.asarray(choices, np.int64)

    def unflatten(self, choices: object) -> Any:
        """Returns choices `(N,)` as an action of the space; raises InvalidActionError."""
        checked = check_action(choices, self.nvec)
        numbers = (checked + self._starts).astype(np.float64)
        numbers[self._binned] = self._bins.values(checked[self._binned])
        return self._numbers.action(numbers)

    def mask(self, given: Any) -> NDArray[np.bool_]:
        """Returns an environment's mask as one of the slots' choices, `(N, K)`.

        See `spin_envs.action_masks.allowed_rows` for what it may be, and the errors.
        """
        return allowed_rows(self._numbers, self.nvec.tolist(), given)

    def slots_of_entries(self) -> dict[Any, list[int]]:
        """Returns the slots of each entry of a `Dict` or `Tuple`, by key or position."""
        slots: dict[Any, list[int]] = {}
        for part, at in zip(self._numbers.parts, self._numbers.slices, strict=True):
            slots.setdefault(part.path[0], []).extend(range(at.start, at.stop))
        return slots

    def where(self, values: Mapping[str, float]) -> dict[int, int]:
        """Returns slots with their choices, of names with the numbers that the environment takes.

        Of a binned slot it is the choice in whose bin the number is.

            flat.where({"board/0": 3, "wheel/0": 0.9})  # {0: 2, 3: 6}, e.g. for rules

        Raises:
            ValueError: there is no slot of a name, or no choice that acts a number.
        """
        found = {}
        for name, value in values.items():
            if name not in self.names:
                raise ValueError(f"Expected names of slots, {self.names}, got {name!r}.")
            slot = self.names.index(name)
            row = np.array([[self.value(i, 0) for i in range(len(self.names))]], np.float64)
            row[0, slot] = value
            try:
                found[slot] = int(self.choices(row)[0, slot])
            except InvalidActionError as error:
                raise ValueError(f"Expected a value of slot {name!r}. {error}") from error
        return found

    def value(self, slot: int, choice: int) -> int | float:
        """Returns the number that a slot's choice acts."""
        if not self._binned[slot]:
            return int(self._starts[slot]) + int(choice)
        return float(self._bins.acted[int(self._binned[:slot].sum())][int(choice)])

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "space": space_to_dict(self.space),
            "edges": [edges.tolist() for edges in self._bins.edges],
            "values": [values.tolist() for values in self._bins.acted],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> FlatActions:
        """Inverse of `to_dict`; the content may be untrusted. ValueError if it is none."""
        try:
            numbers = ActionNumbers(space_from_dict(content["space"]))
            tables = [
                [np.array(row, np.float64) for row in content[name]] for name in ("edges", "values")
            ]
            flat = cls.__new__(cls)
            flat._set(numbers, _checked(numbers, *tables))
        except (AssertionError, AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"The description of the actions is damaged: {error!r}.") from error
        return flat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatActions) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FlatActions({self.space}, nvec={self.nvec.tolist()})"


def is_flat(space: Space[Any]) -> bool:
    """Whether actions of a space are one row of choices, or a single one, already."""
    one_row = isinstance(space, MultiDiscrete | MultiBinary) and len(space.shape) == 1
    return one_row or isinstance(space, Discrete)


def _binned(numbers: ActionNumbers) -> NDArray[np.bool_]:
    return np.repeat([p.is_binned for p in numbers.parts], [p.size for p in numbers.parts])


def _check_finite(numbers: ActionNumbers, rows: Rows) -> None:
    wrong = ~np.isfinite(rows)
    if wrong.any():
        row, slot = (int(i) for i in np.argwhere(wrong)[0])
        raise InvalidActionError(
            f"Expected {numbers.places[slot]} to be finite, got {rows[row, slot]} (action {row})."
        )


def check_bins(space: Space[Any], bins: BinsOf | FlatActions | None) -> None:
    """Raises the ValueError that `FlatActions.made` raises, whatever the log is."""
    if isinstance(bins, FlatActions):
        FlatActions.made(space, bins)
    else:
        _bins_of(ActionNumbers(space), bins)


def _bins_of(numbers: ActionNumbers, bins: BinsOf | None) -> dict[int, Bins]:
    """Returns the bins of each slot that needs some."""
    slots = np.flatnonzero(_binned(numbers)).tolist()
    given = _by_slot(numbers, slots, bins)
    found = {}
    for slot in slots:
        where = numbers.places[slot]
        if given.get(slot) is None:
            raise ValueError(
                f"Expected bins of {where} (slot {numbers.names[slot]!r}), whose values are "
                f"continuous: pass bins=5, or bins={{{numbers.names[slot]!r}: 5}}, say."
            )
        try:
            found[slot] = Bins.of(given[slot])
        except (TypeError, ValueError) as error:
            raise ValueError(f"The bins of {where} are wrong: {error}") from error
    return found


def _divided(numbers: ActionNumbers, bins: BinsOf | None, rows: Rows | None) -> ActionBins:
    """Returns the bins of the slots that need some."""
    edges, values = [], []
    dimensions = _dimensions(numbers)
    for (slot, one), bounds in zip(_bins_of(numbers, bins).items(), dimensions, strict=True):
        try:
            divided = one.divide(*bounds, None if rows is None else rows[:, slot])
        except ValueError as error:
            raise ValueError(f"The bins of {numbers.places[slot]} are wrong: {error}") from error
        edges.append(divided[0])
        values.append(divided[1])
    return _checked(numbers, edges, values)


def _by_slot(numbers: ActionNumbers, slots: list[int], bins: Any) -> dict[int, Any]:
    """Returns what is said of each slot's bins."""
    if bins is None:
        return {}
    if not slots:
        raise ValueError(f"Expected no bins, as no part of {numbers.space} is a Box, got {bins}.")
    if isinstance(bins, Mapping):
        found: dict[int, Any] = {}
        # A longer name says more, so that it wins.
        for name in sorted(bins, key=lambda name: len(str(name))):
            inside = [s for s in slots if f"{numbers.names[s]}/".startswith(f"{name}/")]
            if not inside:
                raise ValueError(
                    f"Expected bins of slots in a Box, {[numbers.names[s] for s in slots]}, got "
                    f"{name!r}."
                )
            found.update(dict.fromkeys(inside, bins[name]))
        return found
    if isinstance(bins, Sequence | np.ndarray) and not isinstance(bins, str):
        if len(bins) != len(slots):
            raise ValueError(
                f"Expected one number of bins or {len(slots)} of them, one for each dimension "
                f"({[numbers.names[s] for s in slots]}), got {len(bins)}."
            )
        return dict(zip(slots, bins, strict=True))
    return dict.fromkeys(slots, bins)


def _dimensions(numbers: ActionNumbers) -> Iterator[tuple[float, float, bool]]:
    """Yields bounds of each slot that needs bins, and whether its values are whole numbers."""
    for part in numbers.parts:
        if part.is_binned:
            space: Any = part.space
            is_whole = np.issubdtype(space.dtype, np.integer)
            for low, high in zip(*bounds_of(space), strict=True):
                yield float(low), float(high), is_whole


def _checked(
    numbers: ActionNumbers, edges: list[NDArray[np.float64]], values: list[NDArray[np.float64]]
) -> ActionBins:
    """Returns bins, each of which must act a value of its own in the space's type."""
    slots = np.flatnonzero(_binned(numbers)).tolist()
    types = np.repeat(
        [np.dtype(p.space.dtype) for p in numbers.parts], [p.size for p in numbers.parts]
    )
    for slot, between, acted in zip(slots, edges, values, strict=True):
        fits = between.ndim == acted.ndim == 1 and len(acted) == len(between) + 1
        fits = fits and bool(np.isfinite(acted).all() and (np.diff(between) > 0).all())
        if not fits:
            raise ValueError(f"Expected ascending edges of {numbers.places[slot]}, and K values.")
        with np.errstate(over="ignore", invalid="ignore"):  # said below
            stored = acted.astype(types[slot])
        bins = np.where(np.isfinite(stored), np.searchsorted(between, stored, side="right"), -1)
        if (bins != np.arange(len(acted))).any():
            wrong = int((bins != np.arange(len(acted))).argmax())
            raise ValueError(
                f"Expected bins of {numbers.places[slot]} that hold values of the space, of type "
                f"{types[slot]}: number {wrong} has none. Take fewer bins, or edges within the "
                "space's bounds."
            )
    return ActionBins(edges, values)
