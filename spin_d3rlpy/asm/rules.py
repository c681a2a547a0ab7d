"""Rules for sampling: which choices are allowed in view of those that are made already.

A rule is any function from partial actions `(R, N)`, -1 where open, to a mask `(R, N, K)`, True
where a choice may still be made. One that looks ahead allows only what can be completed; then
sampling never ends without a choice.

A rule with a second parameter sees the state as well: `rule(partial, state)`. Row i of `state`
`(R, obs)`, float32, is the state in which row i of `partial` is an action: the observation as the
environment or the dataset has it, unscaled, and the newest one of a history. R is any number, also
0, and differs from call to call: a state comes once for each of its candidates, or for each slot
that a search opens, and states whose search has ended come no more.

The rules here know their name and arguments, so that a config and a policy's file keep them
(`spin_d3rlpy.asm.rule_files`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from torch.jit._trace import is_tracing

from spin_d3rlpy.errors import NvecMismatchError

Rule: TypeAlias = Callable[[torch.Tensor], torch.Tensor]  # what decoders ask
StateRule: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
AnyRule: TypeAlias = Rule | StateRule  # what users give

OPEN = -1
ROUNDING = 1e-9  # of sums of costs, relative


@dataclasses.dataclass(frozen=True)
class NamedRule:
    """Base class of rules that files can keep: their fields are plain values."""

    name: ClassVar[str]

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        """Maps partial actions `(R, N)` to allowed choices `(R, N, K)`."""
        raise NotImplementedError

    @property
    def sees_state(self) -> bool:
        """Whether a second argument is the states, `(R, obs)`."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Returns name and arguments as JSON holds them."""
        fields = dataclasses.fields(self)
        return {"name": self.name} | {f.name: _plain(getattr(self, f.name)) for f in fields}

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        """Checks that it is for actions of `nvec`, without work that its numbers could blow up.

        A function is asked about one open action, in a state of `state_size` zeros.

        Raises:
            NvecMismatchError: it is for another action space.
        """

    @property
    def functions(self) -> list[str]:
        """Import paths of the functions in it."""
        return []

    def _require(self, fits: bool, expected: str, nvec: Sequence[int]) -> None:
        if not fits:
            raise NvecMismatchError(
                f"The rule {self} does not fit nvec={list(nvec)}: expected {expected}."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, NamedRule):
        return value.to_dict()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _whole(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(operator.index(value) for value in values)


@dataclasses.dataclass(frozen=True)
class AllDifferent(NamedRule):
    """See `all_different`."""

    name: ClassVar[str] = "all_different"

    n_choices: int
    except_for: tuple[int, ...] = ()

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        choices = torch.arange(self.n_choices, device=partial.device)
        taken = (partial[..., None] == choices).any(1)  # (R, K); an open slot takes none
        for choice in self.except_for:
            taken = taken & (choices != choice)
        return ~taken[:, None].expand(-1, partial.shape[1], -1)

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        self._require(self.n_choices == max(nvec), f"n_choices={max(nvec)}", nvec)
        within = all(0 <= choice < self.n_choices for choice in self.except_for)
        self._require(within, f"except_for below {self.n_choices}", nvec)


def all_different(n_choices: int, except_for: Sequence[int] = ()) -> AllDifferent:
    """No two slots make the same of `n_choices` (K), except for those that any number may make."""
    return AllDifferent(operator.index(n_choices), _whole(except_for))


@dataclasses.dataclass(frozen=True)
class AtMostChanged(NamedRule):
    """See `at_most_changed`."""

    name: ClassVar[str] = "at_most_changed"

    default: tuple[int, ...]
    k: int
    n_choices: int

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        usual = torch.tensor(self.default, device=partial.device)
        changed = ((partial != OPEN) & (partial != usual)).sum(1)
        choices = torch.arange(self.n_choices, device=partial.device)
        same = usual[:, None] == choices  # (N, K)
        return same | (changed < self.k)[:, None, None]

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        self._require(self.n_choices == max(nvec), f"n_choices={max(nvec)}", nvec)
        self._require(len(self.default) == len(nvec), f"a default of {len(nvec)} choices", nvec)
        within = all(0 <= c < m for c, m in zip(self.default, nvec, strict=True))
        self._require(within, "a default of this action space", nvec)


def at_most_changed(default: Sequence[int], k: int, n_choices: int) -> AtMostChanged:
    """At most k slots differ from a default action; slots have up to `n_choices` (K)."""
    return AtMostChanged(_whole(default), operator.index(k), operator.index(n_choices))


@dataclasses.dataclass(frozen=True)
class WithinBudget(NamedRule):
    """See `within_budget`."""

    name: ClassVar[str] = "within_budget"

    costs: tuple[tuple[float, ...], ...]
    budget: float

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        table = torch.tensor(self.costs, dtype=torch.float64, device=partial.device)  # (N, K)
        is_open = partial == OPEN
        rows = table.expand(partial.shape[0], -1, -1)
        made = rows.gather(2, partial.clamp(min=0)[..., None])[..., 0]
        least = table.amin(1).expand_as(made)
        spent = torch.where(is_open, least, made).sum(1, keepdim=True)  # (R, 1)
        total = spent[..., None] - least[..., None] + table  # (R, N, K)
        # 0.1 + 0.2 is more than 0.3 in floating point, by less than this share of what was added.
        added = spent[..., None].abs() + least[..., None].abs() + table.abs()
        return total <= self.budget + ROUNDING * torch.where(added.isfinite(), added, 0.0)

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        shape = [len(row) for row in self.costs]
        expected = [max(nvec)] * len(nvec)
        self._require(shape == expected, f"costs of shape {(len(nvec), max(nvec))}", nvec)


def within_budget(costs: Sequence[Sequence[float]], budget: float) -> WithinBudget:
    """The costs `(N, K)` of the choices add up to at most a budget.

    Choices after which even the cheapest ones of the open slots would exceed it are not allowed.
    Pad the costs of slots with fewer choices than others with infinity. Sums are compared up to
    rounding, so that 0.1 and 0.2 keep to a budget of 0.3; float32 numbers are read as the decimals
    that they print as.

    Raises:
        ValueError: a cost or the budget is not a number.
    """
    table = tuple(tuple(_as_decimal(c) for c in row) for row in np.asarray(costs))
    rule = WithinBudget(table, _as_decimal(budget))
    if any(math.isnan(c) for row in (*rule.costs, (rule.budget,)) for c in row):
        raise ValueError("Expected costs and a budget that are numbers, got NaN.")
    return rule


def _as_decimal(value: Any) -> float:
    return float(str(value)) if isinstance(value, np.float16 | np.float32) else float(value)


@dataclasses.dataclass(frozen=True)
class Never(NamedRule):
    """See `never`."""

    name: ClassVar[str] = "never"

    slots: tuple[int, ...]
    choices: tuple[int, ...]
    n_choices: int

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        device, n_slots = partial.device, partial.shape[1]
        is_slot = torch.arange(n_slots, device=device)[:, None] == torch.tensor(
            self.slots, device=device
        )  # (N, n)
        choices = torch.arange(self.n_choices, device=device)
        is_choice = choices[:, None] == torch.tensor(self.choices, device=device)  # (K, n)
        together = (is_slot[:, None] & is_choice).any(2)  # (N, K)
        made = ((partial[..., None] == choices) & together).any(2).to(torch.int64)  # (R, N)
        others = made.sum(1, keepdim=True) - made
        return ~together | (others < len(self.slots) - 1)[..., None]  # the last one is left out

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        self._require(self.n_choices == max(nvec), f"n_choices={max(nvec)}", nvec)
        within = all(
            0 <= slot < len(nvec) and 0 <= choice < nvec[slot]
            for slot, choice in zip(self.slots, self.choices, strict=True)
        )
        self._require(within, "slots and choices of this action space", nvec)


def never(together: Mapping[int, int], n_choices: int) -> Never:
    """Slots never make these choices all together, such as `{0: 2, 3: 6}`.

    Of slots with names `FlatActions.where` returns them: `never(flat.where({"gear/0": 3, "wheel/0":
    0.9}), n_choices=flat.nvec.max())`. Each rule leaves every slot with two choices or more one
    that is allowed; several of them may not.

    Args:
        together: choices by slot; a single one is never made.
        n_choices: most choices of a slot (K).

    Raises:
        ValueError: there is none.
    """
    if not together:
        raise ValueError("Expected at least one slot with its choice.")
    return Never(_whole(together), _whole([*together.values()]), operator.index(n_choices))


@dataclasses.dataclass(frozen=True)
class Every(NamedRule):
    """See `every`."""

    name: ClassVar[str] = "every"

    rules: tuple[AnyRule, ...]

    def __call__(self, partial: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        """Asks all rules; states, `(R, obs)`, are needed if one of them sees states."""
        rules = (in_states(one, *states) for one in self.rules) if states else self.rules
        asked = (cast(Rule, one)(partial) for one in rules)
        return functools.reduce(torch.logical_and, asked)

    @property
    def sees_state(self) -> bool:
        return any(map(sees_state, self.rules))

    def to_dict(self) -> dict[str, Any]:
        """Returns name and arguments; a ValueError if one of the rules is a plain function."""
        for one in self.rules:
            if not isinstance(one, NamedRule):
                raise ValueError(
                    f"Expected rules that files can keep in every(...), got {one!r}. Wrap a "
                    "function of a module of yours: spin_d3rlpy.asm.rule_files.imported."
                )
        return super().to_dict()

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        for one in self._named:
            one.check(nvec, state_size)

    @property
    def functions(self) -> list[str]:
        return [path for one in self._named for path in one.functions]

    @property
    def _named(self) -> list[NamedRule]:
        return [one for one in self.rules if isinstance(one, NamedRule)]


def every(*rules: AnyRule) -> Every:
    """All rules hold. Each one looks ahead for itself only.

    Raises:
        ValueError: there is no rule.
    """
    if not rules:
        raise ValueError("Expected at least one rule.")
    return Every(rules)


class RowMask:
    """A mask of each state as a rule: slots stay independent.

    Args:
        mask: `(B, N, K)`, True where a choice may be made. Partial actions are of these states, in
            this order, once or several times.
        always_possible: whether every slot is known to have a choice, so that nothing is checked.
    """

    def __init__(self, mask: torch.Tensor, always_possible: bool = False) -> None:
        self.mask = mask
        self.always_possible = always_possible

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        return self.mask.repeat(_times(partial, self.mask), 1, 1)


class InStates:
    """A rule that sees states, asked about actions in some of them.

    Args:
        rule: `rule(partial, state)`.
        states: `(B, obs)`. Partial actions are of these states, in this order, once or several
            times.
    """

    def __init__(self, rule: StateRule, states: torch.Tensor) -> None:
        self.rule, self.states = rule, states

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        return self.rule(partial, self.states.repeat(_times(partial, self.states), 1))


def _times(partial: torch.Tensor, states: torch.Tensor) -> int:
    """Returns how many actions `(R, N)` there are of each of the states `(B, ..)`."""
    rows, of_states = partial.shape[0], states.shape[0]
    if is_tracing():  # how often is the same in all calls, also in those of no rows
        rows, of_states = int(rows), int(of_states)
    return rows // max(1, of_states)


def sees_state(rule: AnyRule) -> bool:
    """Whether a rule takes states as its second argument, which its signature tells.

    That argument is a required one, or named `state`.

    Raises:
        ValueError: it takes neither `(partial)` nor `(partial, state)`.
    """
    if isinstance(rule, NamedRule):
        return rule.sees_state
    if isinstance(rule, RowMask | InStates):
        return False
    try:
        signature = inspect.signature(rule)
    except (TypeError, ValueError):  # of a function that is not Python's
        return False
    second = [*signature.parameters.values()][1:2]
    optional_state = bool(second) and second[0].name == "state"
    for n_arguments in (2,) if optional_state else (1, 2):
        try:
            signature.bind(*[None] * n_arguments)
        except TypeError:
            continue
        return n_arguments == 2
    raise ValueError(
        "Expected a rule that takes partial actions, rule(partial), or also the states that they "
        f"are in, rule(partial, state); got {getattr(rule, '__name__', rule)}{signature}."
    )


def in_states(rule: AnyRule, states: torch.Tensor) -> Rule:
    """Returns a rule as one of unscaled states `(B, obs)`, if it or a part of it sees states."""
    if isinstance(rule, Every):
        return Every(tuple(in_states(one, states) for one in rule.rules))
    return InStates(cast(StateRule, rule), states) if sees_state(rule) else cast(Rule, rule)


def is_in_states(rule: AnyRule | None) -> bool:
    """Whether states were given to a rule, or to a part of it, by `in_states`."""
    parts = rule.rules if isinstance(rule, Every) else ()
    return isinstance(rule, InStates) or any(map(is_in_states, parts))


def of_states(rule: Rule, rows: torch.Tensor) -> Rule:
    """Returns a rule of all states as one of some of them, `(R,)`: masks are of states."""
    if isinstance(rule, RowMask):
        return RowMask(rule.mask[rows], rule.always_possible)
    if isinstance(rule, InStates):
        return InStates(rule.rule, rule.states[rows])
    if isinstance(rule, Every):
        return Every(tuple(of_states(cast(Rule, one), rows) for one in rule.rules))
    return rule


def product_part(rule: Rule | None, scores: torch.Tensor) -> torch.Tensor:
    """Returns scores `(..., B, N, K)`, `-inf` where a rule forbids a choice by itself.

    What it forbids in view of others' choices stays: an independent slot does not know them.
    """
    if rule is None:
        return scores
    shape = scores.shape[-3:-1]
    allowed = rule(torch.full(shape, OPEN, device=scores.device))
    return scores.masked_fill(~allowed, -torch.inf)


def both_rules(one: Rule | None, other: Rule | None) -> Rule | None:
    """Returns a rule that both hold; None forbids nothing."""
    if one is None or other is None:
        return one or other
    return every(one, other)


def conditions_of(
    mask: torch.Tensor | None, rule: AnyRule | None, states: torch.Tensor
) -> Rule | None:
    """Returns a mask `(B, N, K)` and a rule, None if there is none, as one rule of the states."""
    return all_in_states([None if mask is None else RowMask(mask), rule], states)


def all_in_states(rules: Iterable[AnyRule | None], states: torch.Tensor) -> Rule | None:
    """Returns rules that all hold in unscaled states `(B, obs)`, as one; None forbids nothing."""
    bound = [in_states(rule, states) for rule in rules if rule is not None]
    return every(*bound) if len(bound) > 1 else next(iter(bound), None)
