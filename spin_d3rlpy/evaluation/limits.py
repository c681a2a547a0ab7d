"""Limits of a reward, such as complaints that may not become more than today's."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from spin_d3rlpy.errors import shown
from spin_d3rlpy.evaluation.halves import HalvesEstimate

Comparison = Literal["<=", ">="]
TODAY = "today"
PER_DECISION = "per decision"
# `("<=", "today")`, `("<=", 3.0)` of an episode, or `("<=", 0.05, "per decision")`.
Constraint: TypeAlias = tuple[Any, ...]
_EXPECTED = (
    "Expected a limit such as ('<=', 'today'), ('<=', 3.0) of an episode or ('<=', 0.05, 'per "
    "decision'), in text 'complaints <= 0.05 per decision'"
)


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a policy's mean return by one reward may be.

    Attributes:
        reward: name of the reward.
        comparison: `"<="` or `">="`.
        bound: of an episode's return, or of a decision's; None is what the log returns.
        per_decision: whether `bound` is a decision's.
    """

    reward: str
    comparison: Comparison
    bound: float | None
    per_decision: bool = False

    @classmethod
    def of(cls, reward: str, constraint: object) -> Limit:
        """Returns the limit of `("<=", "today")` and the like.

        Raises:
            ValueError: it is none.
        """
        parts = constraint if isinstance(constraint, Sequence) else ()
        wrong = ValueError(f"{_EXPECTED}; got {shown(constraint)} of {shown(reward)}.")
        if isinstance(parts, str) or len(parts) not in (2, 3):
            raise wrong
        comparison, bound, *unit = parts
        is_unit = unit in ([], [PER_DECISION]) and not (unit and bound == TODAY)
        if comparison not in get_args(Comparison) or not is_unit:
            raise wrong
        if bound == TODAY:
            return cls(reward, comparison, None)
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not math.isfinite(bound):
            raise wrong
        return cls(reward, comparison, float(bound), bool(unit))

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Returns the limit of text such as `"complaints <= today"`.

        Raises:
            ValueError: it is none.
        """
        found = re.fullmatch(r"\s*(.+?)\s*(<=|>=)\s*(\S+)\s*(per decision)?\s*", text)
        if found is None:
            raise ValueError(f"{_EXPECTED}; got {shown(text)}.")
        reward, comparison, bound, unit = found.groups()
        value: Any = bound
        if bound != TODAY:
            try:
                value = float(bound)
            except ValueError as error:
                raise ValueError(f"{_EXPECTED}; got {shown(text)}.") from error
        return cls.of(reward, (comparison, value, *([unit] if unit else [])))

    def is_kept(self, estimate: HalvesEstimate, decisions: float) -> bool:
        """Whether a policy surely keeps it: by the far end of its interval.

        Args:
            estimate: of the policy's return by this reward.
            decisions: mean number of an episode's decisions.
        """
        if not estimate.is_answered:
            return False
        if self.bound is None:
            interval, bound = estimate.gain, 0.0
        else:
            interval = estimate.value
            bound = self.bound * (decisions if self.per_decision else 1.0)
        return interval.high <= bound if self.comparison == "<=" else interval.low >= bound

    def __str__(self) -> str:
        bound = TODAY if self.bound is None else f"{self.bound:g}"
        unit = f" {PER_DECISION}" if self.per_decision else ""
        return f"{self.reward} {self.comparison} {bound}{unit}"


def limits_of(constraints: object, names: Sequence[str]) -> list[Limit]:
    """Returns the limits of constraints by reward, or a list of limits.

    Raises:
        ValueError: a limit is none, or of a reward that there is not.
    """
    if isinstance(constraints, Mapping):
        limits = [Limit.of(name, constraint) for name, constraint in constraints.items()]
    elif isinstance(constraints, Sequence) and all(isinstance(c, Limit) for c in constraints):
        limits = list(constraints)
    else:
        raise ValueError(
            f"Expected constraints to map rewards to limits, such as "
            f"{{{names[0]!r}: ('<=', 'today')}}, got {shown(constraints)}."
        )
    for limit in limits:
        if limit.reward not in names:
            raise ValueError(
                f"Expected a limit of one of the rewards {', '.join(map(shown, names))}, got one "
                f"of {shown(limit.reward)}."
            )
    return limits
