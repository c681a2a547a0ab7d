"""Rules in configs and files: named ones with their arguments, functions by their import path.

Importing a module runs it, so a function that a file names is imported only where the user says
that the file is trusted (`load_policy(trust=True)`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from spin_d3rlpy.asm.conditions import checked_rule
from spin_d3rlpy.asm.rules import (
    OPEN,
    AllDifferent,
    AnyRule,
    AtMostChanged,
    Every,
    NamedRule,
    Never,
    WithinBudget,
    all_different,
    at_most_changed,
    every,
    never,
    sees_state,
    within_budget,
)
from spin_d3rlpy.errors import NvecMismatchError, UntrustedRuleError

_TRUSTED = contextvars.ContextVar("trusted_rules", default=False)


@contextlib.contextmanager
def trusted_rules() -> Iterator[None]:
    """Imports the functions that configs name, while the block runs."""
    token = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


@dataclasses.dataclass(frozen=True)
class ImportedRule(NamedRule):
    """A function of a module as a rule.

    Args:
        path: `"module:function"`.
    """

    name: ClassVar[str] = "function"

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise TypeError(f"expected 'module:function' as path, got {self.path!r}")

    def __call__(self, partial: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        """Asks the function; states `(R, obs)` are for one that sees them."""
        checked: Any = _function(self.path).checked
        mask: torch.Tensor = checked(partial, *states)
        return mask

    @property
    def sees_state(self) -> bool:
        return _function(self.path).sees_state

    @property
    def functions(self) -> list[str]:
        return [self.path]

    def check(self, nvec: Sequence[int], state_size: int) -> None:
        expected = (1, len(nvec), max(nvec))
        with torch.device("cpu"):
            states = [torch.zeros(1, state_size)] if self.sees_state else []
            mask = self(torch.full(expected[:2], OPEN), *states)
        self._require(tuple(mask.shape) == expected, f"masks of shape {expected}", nvec)


class _Imported(NamedTuple):
    """A function of a module, with what its signature tells."""

    checked: AnyRule
    sees_state: bool


_IMPORTED: dict[str, _Imported] = {}


def _function(path: str) -> _Imported:
    """Returns a function, which was imported when it was allowed."""
    if path not in _IMPORTED:
        if not _TRUSTED.get():
            raise UntrustedRuleError(
                f"A rule is the function {path!r}, and importing it runs its module. If you trust "
                "where the policy comes from, pass trust=True; or name it yourself, "
                f"rules=[imported({path!r})] of spin_d3rlpy.asm.rule_files."
            )
        _IMPORTED[path] = _imported(path)
    return _IMPORTED[path]


def _imported(path: str) -> _Imported:
    module, colon, names = path.partition(":")
    if not (module and colon and names):
        raise ValueError(f"Expected a rule as 'module:function', got {path!r}.")
    try:
        function = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The rule {path!r} cannot be imported: {error}. Expected a function of a module that "
            "Python finds (of a package, or in a folder of PYTHONPATH)."
        ) from error
    if not callable(function):
        raise ValueError(f"Expected a function as rule, {path!r} is {function!r}.")
    return _Imported(checked_rule(function), sees_state(function))


def imported(function: str | AnyRule) -> ImportedRule:
    """Returns a function as a rule that a config and files keep by its import path.

    Args:
        function: `"module:function"`, which is imported now, or the function itself.

    Raises:
        ValueError: it cannot be imported: a lambda, a function in another one, of a script; or it
            takes neither `(partial)` nor `(partial, state)`.
    """
    if isinstance(function, str):
        path = function
    else:
        module, name = (getattr(function, a, "?") for a in ("__module__", "__qualname__"))
        path = f"{module}:{name}"
        if module == "__main__" or not name.replace(".", "").replace("_", "").isalnum():
            raise ValueError(
                f"Expected a rule that files can keep, got {function!r}: a named one of "
                "spin_d3rlpy.asm.rules, or a function at the top of a module that Python can "
                "import (not a script, a lambda or a function within another one)."
            )
    _IMPORTED[path] = _imported(path)
    return ImportedRule(path)


_NAMED: dict[str, Callable[..., NamedRule]] = {
    AllDifferent.name: all_different,
    AtMostChanged.name: at_most_changed,
    WithinBudget.name: within_budget,
    Never.name: lambda slots, choices, n_choices: never(
        dict(zip(slots, choices, strict=True)), n_choices
    ),
    Every.name: lambda rules: every(*map(as_named_rule, rules)),
    ImportedRule.name: ImportedRule,
}


def as_named_rule(rule: object) -> NamedRule:
    """Returns a rule that files can keep.

    Args:
        rule: one, its `to_dict`, the path `"module:function"` or a function of a module. A path
            is not imported here, see `imported`.

    Raises:
        ValueError: an unknown name, other arguments, or a function that cannot be imported.
    """
    if isinstance(rule, Every):
        return every(*map(as_named_rule, rule.rules))
    if isinstance(rule, NamedRule):
        return rule
    if isinstance(rule, str):
        return ImportedRule(rule)
    if not isinstance(rule, Mapping):
        if callable(rule):
            return imported(rule)
        raise ValueError(f"Expected a rule, see spin_d3rlpy.asm.rules, got {rule!r}.")
    arguments = dict(rule)
    name = arguments.pop("name", None)
    if name not in _NAMED:
        raise ValueError(f"Expected a rule named {', '.join(_NAMED)}; got {name!r}.")
    try:
        return _NAMED[name](**arguments)
    except TypeError as error:
        raise ValueError(f"The rule {name!r} has no such arguments {arguments}: {error}") from error


def rule_of(rules: Sequence[NamedRule] | None) -> NamedRule | None:
    """Returns the rule that all of them hold; None if there is none."""
    if not rules:
        return None
    return rules[0] if len(rules) == 1 else every(*rules)


def check_rules(rules: Sequence[NamedRule], nvec: Sequence[int], state_size: int) -> None:
    """Checks that rules fit an action space, and states of `state_size` numbers.

    Raises:
        NvecMismatchError: one does not.
        UntrustedRuleError: one is a function of a file that is not trusted.
    """
    for rule in rules:
        try:
            rule.check(nvec, state_size)
        except (RuntimeError, IndexError) as error:  # shapes that do not fit, in a function
            raise NvecMismatchError(
                f"The rule {rule} does not fit nvec={list(nvec)}: {error}"
            ) from error
