"""Search for the best action that the data support: policy improvement without a policy network.

From a first action, `improve` moves to better ones, by the smallest value of an ensemble of critics
of whole actions. A move changes one slot's choice, or exchanges those of two slots, which is what
is left where no two slots may choose the same. Only choices count that the policy gives, in view of
all other slots, at least a share of the probability of the likeliest one: so the search leaves the
actions of the data, and does not leave what the data say about them.

A round values all moves at once. It makes those that do not touch each other together: as many of
the best ones as give the whole action the largest value.

Axes: `B` states, `N` slots, `K` most choices of a slot, `R` moves in any states, `P` numbers of
moves that are tried together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.decoding import Conditionals, restricts_pairs
from spin_d3rlpy.asm.rules import OPEN, Rule, of_states
from spin_d3rlpy.critics.joint import JointQFunction
from spin_d3rlpy.nvec import SlotLayout

# Rounds of a sweep. Most searches end after two to five of them, when nothing gains; a file always
# has them all.
MOST_ROUNDS = 6
LEAST_GAIN = 1e-5  # relative; less is rounding


class Conditions(NamedTuple):
    """What choices must keep to.

    Attributes:
        action_flexibility: least probability of a choice, relative to the likeliest one's, in
            (0, 1].
        allowed: bool mask `(B, N, K)` of choices that may be made.
        rule: which choices may be made in view of all others, see `spin_d3rlpy.asm.rules`.
        given: `(B, N)` choices that stay as they are; -1 elsewhere.
    """

    action_flexibility: float
    allowed: torch.Tensor | None = None
    rule: Rule | None = None
    given: torch.Tensor | None = None

    def of(self, rows: torch.Tensor) -> Conditions:
        """Returns those of some of the states, `(R,)`."""
        rule = None if self.rule is None else of_states(self.rule, rows)
        allowed, given = (x if x is None else x[rows] for x in (self.allowed, self.given))
        return Conditions(self.action_flexibility, allowed, rule, given)


class _Moves(NamedTuple):
    """Moves of two slots; a change of one slot names it twice."""

    rows: torch.Tensor  # (R,)
    slots: torch.Tensor  # (R, 2)
    choices: torch.Tensor  # (R, 2), new ones

    def of(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns actions `(R, N)` after each move from `(B, N)`."""
        return actions[self.rows].scatter(1, self.slots, self.choices)


@torch.no_grad()
def improve(
    members: Sequence[JointQFunction],
    conditionals_of: Callable[[torch.Tensor], Conditionals],
    observations: torch.Tensor,
    actions: torch.Tensor,
    conditions: Conditions,
    rounds: int = MOST_ROUNDS,
    deadline: float = math.inf,
) -> torch.Tensor:
    """Returns better actions `(B, N)`, in rounds from `actions` `(B, N)`.

    Args:
        members: value whole actions; the smallest of their values counts.
        conditionals_of: from observations the policy's conditionals.
        observations: `(B, obs)`, the networks' input.
        actions: where to start from. A choice that may not be made leaves it for the best that may.
        conditions: which choices may be made.
        rounds: at most; ends early where nothing gains any more.
        deadline: time on `time.monotonic`'s clock. No round begins that would end after it, if it
            took as long as the longest before.
    """
    values_in, conditionals = _Values(members, observations), conditionals_of(observations)
    value, longest = values_in.of(actions), 0.0  # (B,)
    shares_choices, layout = members[0].actions.shares_choices, conditionals.layout
    for done in range(rounds):
        began = time.monotonic()
        if began + longest > deadline:
            break
        may, moves = _possible(conditionals, actions, conditions, shares_choices)
        if not is_exporting() and len(moves.rows) == 0:
            break
        gains = values_in.after(moves, actions) - value[moves.rows]
        forced = ~may.gather(2, actions[..., None])[..., 0] & may.any(-1)  # (B, N)
        gains = gains / _least_gain(value)[moves.rows]
        counts = _count(moves, gains, forced)
        tried = _together(actions, moves, gains, counts, layout, shares_choices)  # (P, B, N)
        values = values_in.of(tried)
        if restricts_pairs(conditions.rule):  # the best move alone keeps it
            kept = values[1:].masked_fill(~_keep(conditions.rule, tried[1:]), -torch.inf)
            values = torch.cat([values[:1], kept])
        values, best = values.max(0)  # (B,)
        is_better = (values - value > _least_gain(value)) | forced.any(1)
        chosen = tried.gather(0, best[None, :, None].expand(1, *actions.shape))[0]
        actions = torch.where(is_better[:, None], chosen, actions)
        value = torch.where(is_better, values, value)
        if is_exporting():
            continue
        rows = is_better.nonzero()[:, 0]
        if 2 * len(rows) <= len(actions):  # the others are done
            if len(rows) == 0:
                break
            left = conditions.of(rows), rounds - done - 1, deadline
            rest = improve(members, conditionals_of, observations[rows], actions[rows], *left)
            return actions.index_copy(0, rows, rest)
        longest = max(longest, time.monotonic() - began)
    return actions


class _Values:
    """Smallest values of an ensemble in states."""

    def __init__(self, members: Sequence[JointQFunction], observations: torch.Tensor) -> None:
        self._parts = [(q, q.open(observations), q.output()) for q in members]

    def of(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns values `([A,] B)` of actions `([A,] B, N)`."""
        values = [q.values(state.total(actions), out) for q, state, out in self._parts]
        return torch.stack(values).amin(0)

    def after(self, moves: _Moves, actions: torch.Tensor) -> torch.Tensor:
        """Returns values `(R,)` after moves from actions `(B, N)`."""
        values = [q.values(state.moved(actions, *moves), out) for q, state, out in self._parts]
        return torch.stack(values).amin(0)


def _possible(
    conditionals: Conditionals, actions: torch.Tensor, conditions: Conditions, exchanges: bool
) -> tuple[torch.Tensor, _Moves]:
    """Returns which choices each slot may make in view of all others, `(B, N, K)`, and moves."""
    log_share = math.log(conditions.action_flexibility)
    logits = conditionals.given_others(actions)
    most = logits.amax(-1, keepdim=True)  # (B, N, 1)
    may = _under_conditions(logits >= most + log_share, actions, conditions)
    other = torch.arange(may.shape[2], device=may.device) != actions[..., None]
    row, slot, choice = (may & other).nonzero(as_tuple=True)
    changes = _Moves(row, _twice(slot), _twice(choice))
    of_others = conditionals.of_others_choices(actions) if exchanges else None  # (B, N, N)
    if of_others is None:
        return may, changes
    takes = of_others >= torch.maximum(most, of_others) + log_share
    found = _exchanges(takes, actions, conditions)
    return may, _Moves(*(torch.cat(both) for both in zip(changes, found, strict=True)))


def _twice(index: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, 2)


def _exchanges(takes: torch.Tensor, actions: torch.Tensor, conditions: Conditions) -> _Moves:
    """Returns exchanges in which each of two slots takes the other's choice, bool `(B, N, N)`."""
    n_slots, allowed, rule = actions.shape[1], conditions.allowed, conditions.rule
    if allowed is not None:
        takes = takes & allowed.gather(2, actions[:, None].expand(-1, n_slots, -1))
    if conditions.given is not None:
        takes = takes & (conditions.given == OPEN)[..., None]
    differ = actions[:, :, None] != actions[:, None]
    row, one, other = (takes & takes.mT & differ).triu(1).nonzero(as_tuple=True)
    slots = torch.stack([one, other], dim=1)
    moves = _Moves(row, slots, actions[row].gather(1, slots.flip(1)))
    if rule is None:
        return moves
    rule, after = of_states(rule, row), moves.of(actions)
    keeps = torch.ones_like(row, dtype=torch.bool)
    for place in (0, 1):  # each in view of all others, the other one of the two included
        slot, choice = slots[:, place, None], moves.choices[:, place, None]
        may = _rows_of_slot(rule(after.scatter(1, slot, OPEN)), slot)
        keeps = keeps & may.gather(1, choice)[:, 0]
    return _Moves(*(part[keeps] for part in moves))


def _rows_of_slot(table: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Returns rows `(R, K)` of a table `(R, N, K)` of slots `(R, 1)`."""
    return table.gather(1, slot[..., None].expand(-1, -1, table.shape[2]))[:, 0]


def _under_conditions(
    may: torch.Tensor, actions: torch.Tensor, conditions: Conditions
) -> torch.Tensor:
    """Returns which choices `may`, bool `(B, N, K)`, the conditions leave."""
    if conditions.allowed is not None:
        may = may & conditions.allowed
    if conditions.rule is not None:
        may = may & _allowed_by(conditions.rule, actions)
    if conditions.given is not None:
        may = may & (conditions.given == OPEN)[..., None]
    return may


def _allowed_by(rule: Rule, actions: torch.Tensor) -> torch.Tensor:
    """Returns what a rule allows each slot in view of all others of `(B, N)`, `(B, N, K)`."""
    n_slots = actions.shape[1]
    itself = torch.eye(n_slots, dtype=torch.bool, device=actions.device)[:, None]
    opened = torch.where(itself, OPEN, actions)  # (N, B, N): each slot open in turn
    may = rule(opened.flatten(0, 1)).unflatten(0, (n_slots, -1))  # (N, B, N, K)
    of_opened: torch.Tensor = may.diagonal(dim1=0, dim2=2).permute(0, 2, 1)
    return of_opened


def _keep(rule: Rule | None, actions: torch.Tensor) -> torch.Tensor:
    """Returns which of actions `(P, B, N)` keep a rule, `(P, B)`."""
    assert rule is not None
    kept = [_allowed_by(rule, one).gather(2, one[..., None]).all(1)[:, 0] for one in actions]
    return torch.stack(kept)


def _least_gain(value: torch.Tensor) -> torch.Tensor:
    return LEAST_GAIN * value.abs().clamp(min=1.0)


def _count(moves: _Moves, gains: torch.Tensor, forced: torch.Tensor) -> torch.Tensor:
    """Returns which moves `(R,)` count: those that gain, in units of the least gain, at least 1.

    In states with slots that may not keep their choice, it is all changes of these slots.
    """
    rows, (one, other) = moves.rows, moves.slots.unbind(1)
    gain = gains > 1.0
    of_forced = forced[rows, one] & (one == other)
    is_forced = forced.any(1)[rows]
    return (is_forced & of_forced) | (~is_forced & gain)


def _together(
    actions: torch.Tensor,
    moves: _Moves,
    gains: torch.Tensor,
    counts: torch.Tensor,
    layout: SlotLayout,
    shares_choices: bool,
) -> torch.Tensor:
    """Returns actions after the best 1, 2, 4 .. moves that do not touch each other, `(P, B, N)`.

    Moves touch each other if they are of the same slot or, where slots share their choices, take or
    leave the same choice. Of those the best one counts.
    """
    n_slots, n_choices = layout.n_slots, layout.max_choices
    rows, n_rows = moves.rows[:, None], actions.shape[0]
    at = rows * n_slots + moves.slots  # (R, 2)
    # By rank, as equal gains would both be the best; equal but for rounding, as those of slots that
    # are alike, they have the same ranks on every machine and in files.
    rank = gains.round().argsort(stable=True).argsort().to(gains.dtype) + 1.0
    rank = torch.where(counts, rank, 0.0)[:, None].expand(-1, 2)  # (R, 2)
    accepted = (rank == _largest(at, rank, n_rows * n_slots)[at]) & (rank > 0.0)
    if shares_choices:
        before = actions[moves.rows].gather(1, moves.slots)
        taken, left = rows * n_choices + moves.choices, rows * n_choices + before
        best = _largest(torch.cat([taken, left]), rank.repeat(2, 1), n_rows * n_choices)
        accepted = accepted & (rank == best[taken]) & (rank == best[left])
    accepted = accepted.all(1, keepdim=True)
    # No two accepted moves are of the same slot, so that each slot has the rank of its own.
    ranks = _largest(at, rank * accepted, n_rows * n_slots).unflatten(0, (-1, n_slots))  # (B, N)
    choices = ((moves.choices + 1) * accepted).to(rank.dtype)
    new = _largest(at, choices, n_rows * n_slots).unflatten(0, (-1, n_slots)).long() - 1
    in_order = ranks.sort(1, descending=True).values
    sizes = [2**i for i in range(n_slots.bit_length())]
    least = torch.stack([in_order[:, min(n, n_slots) - 1] for n in sizes])[..., None]
    return torch.where((ranks >= least) & (ranks > 0.0), new, actions)


def _largest(index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    """Returns the largest of the values at each place of an index of the same shape, `(size,)`."""
    zeros = torch.zeros(size, dtype=values.dtype, device=values.device)
    return zeros.scatter_reduce(0, index.flatten(), values.flatten(), "amax")
