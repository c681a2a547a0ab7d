"""Rules for sampling: which choices are allowed in view of those that are made already.

A rule is any function from partial actions `(R, N)`, -1 where open, to a mask `(R, N, K)`, True
where a choice may still be made. One that looks ahead allows only what can be completed; then
sampling never ends without a choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

Rule = Callable[[torch.Tensor], torch.Tensor]

OPEN = -1


def all_different(n_choices: int, except_for: Sequence[int] = ()) -> Rule:
    """No two slots make the same of `n_choices` (K), except for those that any number may make."""

    def rule(partial: torch.Tensor) -> torch.Tensor:
        # Open slots mark an entry past the last choice.
        marked = torch.where(partial == OPEN, n_choices, partial)
        taken = torch.zeros(len(partial), n_choices + 1, dtype=torch.bool, device=partial.device)
        taken.scatter_(1, marked, True)
        taken[:, list(except_for)] = False
        return ~taken[:, None, :n_choices].expand(-1, partial.shape[1], -1)

    return rule


def at_most_changed(default: Sequence[int], k: int, n_choices: int) -> Rule:
    """At most k slots differ from a default action; slots have up to `n_choices` (K)."""

    def rule(partial: torch.Tensor) -> torch.Tensor:
        usual = torch.as_tensor(list(default), device=partial.device)
        changed = ((partial != OPEN) & (partial != usual)).sum(1)
        same = torch.nn.functional.one_hot(usual, n_choices).bool()  # (N, K)
        return same | (changed < k)[:, None, None]

    return rule


def within_budget(costs: Sequence[Sequence[float]], budget: float) -> Rule:
    """The costs `(N, K)` of the choices add up to at most a budget.

    Choices after which even the cheapest ones of the open slots would exceed it are not allowed.
    Costs past a slot's last choice are not read.
    """

    def rule(partial: torch.Tensor) -> torch.Tensor:
        table = torch.as_tensor(costs, dtype=torch.float64, device=partial.device)  # (N, K)
        is_open = partial == OPEN
        made = table.expand(len(partial), -1, -1).gather(2, partial.clamp(min=0)[..., None])[..., 0]
        least = table.amin(1).expand_as(made)
        spent = torch.where(is_open, least, made).sum(1, keepdim=True)  # (R, 1)
        return spent[..., None] - least[..., None] + table <= budget

    return rule


def every(*rules: Rule) -> Rule:
    """All rules hold. Each one looks ahead for itself only."""

    def rule(partial: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.logical_and, (one(partial) for one in rules))

    return rule
