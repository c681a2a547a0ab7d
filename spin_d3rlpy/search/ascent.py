"""Search for the best action that the data support: policy improvement without a policy network.

From a first action, `ascend` changes one slot after the other to its best choice, by the smallest
value of an ensemble of critics of whole actions. Only choices count that the policy gives, in view
of all other slots, at least `action_flexibility` of the probability of the likeliest one: so the
search leaves the actions of the data, and does not leave what the data say about them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.decoding import Conditionals
from spin_d3rlpy.asm.rules import OPEN, Rule
from spin_d3rlpy.critics.joint import JointQFunction
from spin_d3rlpy.nvec import replace_slot


@torch.no_grad()
def ascend(
    members: Sequence[JointQFunction],
    conditionals: Conditionals,
    observations: torch.Tensor,
    actions: torch.Tensor,
    action_flexibility: float,
    sweeps: int,
    allowed: torch.Tensor | None = None,
    rule: Rule | None = None,
    given: torch.Tensor | None = None,
    deadline: float = math.inf,
) -> torch.Tensor:
    """Returns better actions `(B, N)`, by coordinate ascent from `actions` `(B, N)`.

    Args:
        members: value whole actions; the smallest of their values counts.
        conditionals: of the policy, with `actions` as the slots' choices.
        observations: `(B, obs)`, the networks' input.
        actions: where to start from.
        action_flexibility: least probability of a choice, relative to the likeliest one's, in
            (0, 1].
        sweeps: how often every slot is visited; ends early where nothing changes any more.
        allowed: bool mask `(B, N, K)` of choices that may be made.
        rule: which choices may be made in view of all others, see `spin_d3rlpy.asm.rules`.
        given: `(B, N)` choices that stay as they are; -1 elsewhere.
        deadline: time, on `time.monotonic`'s clock, after which no further slot is visited.
    """
    states = [q.open(observations) for q in members]
    outputs = [q.output() for q in members]

    def least_value(sums: Sequence[torch.Tensor]) -> torch.Tensor:
        values = [q.values(x, out) for q, x, out in zip(members, sums, outputs, strict=True)]
        return torch.stack(values).amin(0)

    sums = [state.total(actions) for state in states]
    value = least_value(sums)  # (B,), of the actions
    slack = math.log(action_flexibility)
    everyone = torch.arange(actions.shape[0], device=actions.device)
    for _ in range(sweeps):
        start = actions
        for slot in range(actions.shape[1]):
            if deadline < math.inf and time.monotonic() > deadline:
                return actions
            conditionals.hide(slot)
            logits = conditionals.logits(slot)
            may = logits >= logits.amax(1, keepdim=True) + slack
            may = _under_conditions(may, actions, slot, allowed, rule, given)
            now, n_choices = actions[:, slot], may.shape[1]
            is_now = torch.arange(n_choices, device=may.device) == now[:, None]
            others = may & ~is_now
            if is_exporting():  # a file computes all choices: their number may not vary
                row = everyone.repeat_interleave(n_choices)
                choice = torch.arange(n_choices, device=may.device).repeat(actions.shape[0])
            else:
                row, choice = others.nonzero(as_tuple=True)
                if len(row) == 0:
                    conditionals.choose(slot, now)
                    continue
            tried = [
                state.swaps(total, actions, slot, row, choice)
                for state, total in zip(states, sums, strict=True)
            ]
            values = torch.full(others.shape, -torch.inf, device=value.device)
            values = values.index_put((row, choice), least_value(tried))
            values, best = values.masked_fill(~others, -torch.inf).max(1)
            # What may not be chosen any more leaves the action for the best that may.
            stays = (may & is_now).any(1) & (value >= values)
            moves = (values > -torch.inf) & ~stays
            # Sums of the best choices are among those that were tried.
            place = everyone * n_choices + best
            if not is_exporting():
                place = (others.flatten().cumsum(0) - 1)[place].clamp(min=0)
            best = torch.where(moves, best, now)
            value = torch.where(moves, values, value)
            sums = [
                torch.where(moves[:, None], new[place], total)
                for new, total in zip(tried, sums, strict=True)
            ]
            actions = replace_slot(actions, slot, best)
            conditionals.choose(slot, best)
        if not is_exporting() and torch.equal(start, actions):
            break
    return actions


def _under_conditions(
    may: torch.Tensor,
    actions: torch.Tensor,
    slot: int,
    allowed: torch.Tensor | None,
    rule: Rule | None,
    given: torch.Tensor | None,
) -> torch.Tensor:
    """Returns which of a slot's choices `may`, bool `(B, K)`, the conditions of `ascend` leave."""
    n_choices = may.shape[1]
    if allowed is not None:
        may = may & allowed[:, slot, :n_choices]
    if rule is not None:
        opened = actions.clone()
        opened[:, slot] = OPEN
        may = may & rule(opened)[:, slot, :n_choices]
    if given is not None:
        may = may & (given[:, slot] == OPEN)[:, None]
    return may
