"""Choosing slot by slot by a rule, from scores of all choices; exports can follow it."""

from __future__ import annotations

from typing import Literal

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.rules import OPEN, RowMask, Rule
from spin_d3rlpy.errors import NoAllowedChoiceError

# Which slot is chosen next: the one whose best choice is the most likely one, by logits; or the one
# that would lose most if another slot took its best choice, by values.
FirstSlot = Literal["surest", "dearest"]


def by_rule(
    scores: torch.Tensor,
    rule: Rule,
    noise: torch.Tensor | None = None,
    first: FirstSlot = "surest",
    otherwise: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns each slot's best choice of those that a rule allows, `(R, N)`.

    Slots are independent but for the rule. They are chosen one after the other, each in view of
    those before it, so the result keeps the rule, and need not be the best action that does.

    Args:
        scores: logits or values of all choices, `(R, N, K)`; `-inf` is no choice.
        rule: see `spin_d3rlpy.asm.rules`.
        noise: is added to a slot's scores, `(R, N, K)`: Gumbel noise for a sample.
        first: which slot is chosen next.
        otherwise: scores `(R, N, K)` that count where no choice with a score is allowed.

    Raises:
        NoAllowedChoiceError: nothing is allowed for a slot. A file has the choice -1 there.
    """
    actions = torch.full_like(scores[..., 0], OPEN, dtype=torch.int64)
    if isinstance(rule, RowMask):  # no slot depends on another one
        allowed = _kept(scores, rule(actions), otherwise)
        choices = choice_of(allowed if noise is None else allowed + noise)
        require_choices(choices == OPEN, actions, rule)
        return choices
    chosen = torch.zeros_like(actions, dtype=torch.bool)
    slots = torch.arange(scores.shape[1], device=scores.device)
    for _ in range(scores.shape[1]):
        allowed = _kept(scores, rule(actions), otherwise)
        urgency = _urgency(allowed, first).masked_fill(chosen, -torch.inf)
        now = slots == urgency.argmax(1, keepdim=True)  # (R, N), one slot each
        choices = choice_of(allowed if noise is None else allowed + noise)
        require_choices(now & (choices == OPEN), actions, rule)
        actions = torch.where(now, choices, actions)
        chosen = chosen | now
    return actions


def _kept(scores: torch.Tensor, may: torch.Tensor, otherwise: torch.Tensor | None) -> torch.Tensor:
    """Returns scores of what may be chosen, `-inf` elsewhere; see `by_rule`."""
    allowed = scores.masked_fill(~may, -torch.inf)
    if otherwise is None:
        return allowed
    nothing = (allowed == -torch.inf).all(-1, keepdim=True)
    return torch.where(nothing, otherwise.masked_fill(~may, -torch.inf), allowed)


def _urgency(scores: torch.Tensor, first: FirstSlot) -> torch.Tensor:
    """Returns how early each slot should be chosen, `(R, N)`; one without a choice at once."""
    best = scores.amax(-1)
    if first == "surest":
        urgency = best - scores.logsumexp(-1)
    elif scores.shape[-1] == 1:
        urgency = best
    else:
        two = scores.topk(2, dim=-1).values
        urgency = two[..., 0] - two[..., 1]
    return torch.where(best == -torch.inf, torch.inf, urgency)


def choice_of(scores: torch.Tensor) -> torch.Tensor:
    """Returns the best choice by scores `(..., K)`, -1 where all are `-inf`, `(...)`."""
    best, choice = scores.max(-1)
    return torch.where(best == -torch.inf, OPEN, choice)


def allowed_scores(
    scores: torch.Tensor, rule: Rule | None, choices: list[torch.Tensor], n_slots: int
) -> torch.Tensor:
    """Returns the next slot's scores `(R, m)`, `-inf` where the rule forbids a choice.

    Args:
        scores: of its choices.
        rule: None forbids nothing.
        choices: `(R,)` each, of all slots before it.
        n_slots: of the action (N).

    Raises:
        NoAllowedChoiceError: as of `by_rule`.
    """
    if rule is None:
        return scores
    slot = len(choices)
    opened = torch.full_like(scores[:, :1], OPEN, dtype=torch.int64).expand(-1, n_slots - slot)
    partial = torch.cat([*(choice[:, None] for choice in choices), opened], dim=1)
    scores = scores.masked_fill(~rule(partial)[:, slot, : scores.shape[1]], -torch.inf)
    stuck = (scores == -torch.inf).all(-1, keepdim=True)
    slots = torch.arange(n_slots, device=scores.device)
    require_choices(stuck & (slots == slot), partial, rule)
    return scores


def require_choices(stuck: torch.Tensor, actions: torch.Tensor, rule: Rule | None) -> None:
    """Raises NoAllowedChoiceError if a slot `(R, N)` is stuck."""
    if is_exporting() or getattr(rule, "always_possible", False):
        return  # a recorded update cannot wait for the answer
    if not bool(stuck.any()):
        return
    row, slot = stuck.nonzero()[0].tolist()
    raise NoAllowedChoiceError(
        f"No choice is allowed for slot {slot} in view of {actions[row].tolist()} (-1: open). "
        "Expected a rule that allows only what can be completed; loosen it, or what is given."
    )
