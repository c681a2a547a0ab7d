"""Search for the best action that the data support: policy improvement without a policy network.

From first actions, `improve` moves to better ones, by the smallest value of an ensemble of critics
of whole actions. A move changes one slot's choice, or exchanges those of two slots, which is what
is left where no two slots may choose the same. Only choices count that the policy gives, in view of
all other slots, at least a share of the probability of the likeliest one: so the search leaves the
actions of the data, and does not leave what the data say about them.

A round values all moves of a kind at once. Those that do not touch each other add up: a round makes
as many of the best ones as give the whole action the largest value. Changes are made until none
gains, then exchanges.

Axes: `S` starts in each state, `B` states, `N` slots, `K` most choices of a slot, `R` moves in any
states, `P` numbers of moves that are tried together, `W` width of critics' sums. Below `improve` a
start in a state counts as a state of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.decoding import Conditionals, restricts_pairs
from spin_d3rlpy.asm.rules import OPEN, Rule, of_states
from spin_d3rlpy.critics.joint import ActionSums, JointQFunction, Moves, Output
from spin_d3rlpy.search.deadline import Deadline

# Of a sweep. Most searches end before, when nothing gains; further rounds find the last few percent
# of a gain. A file always has them all.
MOST_CHANGES, MOST_EXCHANGES = 3, 2
LEAST_GAIN = 1e-5  # relative; less is rounding
MOVES_AT_ONCE = 64  # where time is limited: those of an unsure policy can take 50 times a round's
MOST_KEY, NO_KEY = 1e9, -(2**62)  # of a move's place among others


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


Kind: TypeAlias = Literal["changes", "exchanges"]


@torch.no_grad()
def improve(
    members: Sequence[JointQFunction],
    conditionals_of: Callable[[torch.Tensor], Conditionals],
    observations: torch.Tensor,
    starts: torch.Tensor,
    conditions: Conditions,
    sweeps: int = 1,
    deadline: Deadline | None = None,
) -> torch.Tensor:
    """Returns better actions `(S, B, N)`, in rounds from each of the starts.

    Args:
        members: value whole actions; the smallest of their values counts.
        conditionals_of: from the numbers of states `(R,)` the policy's conditionals there.
        observations: `(B, obs)`, the critics' input.
        starts: actions `(S, B, N)`. A choice that may not be made leaves it for the best that may.
        conditions: which choices may be made.
        sweeps: how often changes are followed by exchanges; ends early where nothing gains.
        deadline: no round begins that would end after it, if it took as long as the longest before.
    """
    deadline = deadline or Deadline()
    if not deadline.allows():
        return starts
    with deadline.timed():
        states = torch.arange(starts.shape[1], device=starts.device).repeat(len(starts))
        actions = starts.flatten(0, 1)
        functions = [(q, q.open(observations).of(states), q.output()) for q in members]
        values = _Values(functions, [state.total(actions) for _, state, _ in functions])
        conditions = conditions.of(states)
        search = _Search(values, conditionals_of, states, actions, conditions, deadline)
    exchanges = members[0].actions.gains_by_exchanges
    for sweep in range(sweeps):
        is_better = search.rounds("changes", MOST_CHANGES, is_first=sweep == 0)
        is_better |= exchanges and search.rounds("exchanges", MOST_EXCHANGES)
        if not is_better and not is_exporting():
            break
    improved: torch.Tensor = search.actions.unflatten(0, (len(starts), -1))
    return improved


class _Values:
    """Smallest values of an ensemble, of actions in states and of what moves make of them.

    Args:
        functions: members, each opened in the states, and with the output that it values by.
        sums: of the actions, one `(B, W)` of each member.
    """

    def __init__(
        self, functions: list[tuple[JointQFunction, ActionSums, Output]], sums: list[torch.Tensor]
    ) -> None:
        self._functions, self.sums = functions, sums
        self.choices_touch = functions[0][0].actions.choices_touch
        self.now = self._least(sums)  # (B,)

    def _least(self, sums: Sequence[torch.Tensor]) -> torch.Tensor:
        pairs = zip(self._functions, sums, strict=True)
        return torch.stack([q.values(x, out) for (q, _, out), x in pairs]).amin(0)

    def changes(self, actions: torch.Tensor, moves: Moves) -> list[torch.Tensor]:
        """Returns by how much moves from actions `(B, N)` change each member's sums, `(R, W)`."""
        return [state.changes(actions, moves) for _, state, _ in self._functions]

    def after(self, rows: torch.Tensor, changes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the values `(R,)` after each of these changes of rows `(R,)` alone."""
        pairs = zip(self.sums, changes, strict=True)
        return self._least([sums[rows] + change for sums, change in pairs])

    def after_several(
        self, rows: torch.Tensor, changes: Sequence[torch.Tensor], is_made: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns values `(P, B)` and sums `(P, B, W)` after those changes that are made.

        Args:
            rows: whose changes these are, `(R,)`.
            changes: of each member's sums, `(R, W)`, by moves that do not touch each other.
            is_made: bool `(P, R)`.
        """
        made = is_made[..., None].to(changes[0].dtype)
        repeated = (len(is_made), -1, -1)
        sums = [
            total.expand(*repeated).index_add(1, rows, made * change)
            for total, change in zip(self.sums, changes, strict=True)
        ]
        return self._least(sums), sums

    def move(self, values: torch.Tensor, sums: list[torch.Tensor]) -> None:
        """Takes over values `(B,)` and sums of other actions."""
        self.now, self.sums = values, sums

    def of(self, rows: torch.Tensor) -> _Values:
        """Returns those of some of the states, `(R,)`."""
        functions = [(q, state.of(rows), out) for q, state, out in self._functions]
        return _Values(functions, [sums[rows] for sums in self.sums])


class _Search:
    """Actions that get better round by round. For the arguments see `improve`."""

    def __init__(
        self,
        values: _Values,
        conditionals_of: Callable[[torch.Tensor], Conditionals],
        states: torch.Tensor,
        actions: torch.Tensor,
        conditions: Conditions,
        deadline: Deadline,
    ) -> None:
        self._values, self._conditionals_of = values, conditionals_of
        self._states, self.actions, self._conditions = states, actions, conditions
        self._possible = _Possible(conditionals_of(states), conditions, actions)
        self._deadline = deadline

    def rounds(self, kind: Kind, most: int, is_first: bool = False) -> bool:
        """Makes moves of a kind until none gains; returns whether any was made.

        Args:
            kind: of the moves.
            most: rounds at most.
            is_first: whether choices that may not be made leave the actions for the best that may.
        """
        any_better = False
        for done in range(most):
            if not self._deadline.allows():
                break
            with self._deadline.timed():
                is_better = self._round(kind, is_first and done == 0)
            if is_exporting():
                continue
            rows = is_better.nonzero()[:, 0]
            if len(rows) == 0:
                break
            any_better = True
            if 2 * len(rows) <= len(self.actions):  # the others are done
                self._go_on(rows, kind, most - done - 1)
                break
        return any_better

    def _go_on(self, rows: torch.Tensor, kind: Kind, most: int) -> None:
        """Makes further rounds in some of the states, `(R,)`."""
        rest = _Search(
            self._values.of(rows),
            self._conditionals_of,
            self._states[rows],
            self.actions[rows],
            self._conditions.of(rows),
            self._deadline,
        )
        rest.rounds(kind, most)
        self.actions = self.actions.index_copy(0, rows, rest.actions)
        pairs = zip(self._values.sums, rest._values.sums, strict=True)
        sums = [all_sums.index_copy(0, rows, some) for all_sums, some in pairs]
        self._values.move(self._values.now.index_copy(0, rows, rest._values.now), sums)

    def _round(self, kind: Kind, is_first: bool) -> torch.Tensor:
        """Makes the best moves that do not touch each other; returns where, bool `(B,)`."""
        actions, values, possible = self.actions, self._values, self._possible
        moves = possible.changes(actions) if kind == "changes" else possible.exchanges(actions)
        forced = possible.forced(actions) if is_first else None
        nowhere = torch.zeros_like(values.now, dtype=torch.bool)
        if not is_exporting() and len(moves.rows) == 0:
            return nowhere
        moves, changes, after = self._valued(moves)
        least_gain = LEAST_GAIN * values.now.abs().clamp(min=1.0)  # (B,)
        gains = (after - values.now[moves.rows]) / least_gain[moves.rows]
        counts = gains > 1.0
        if forced is not None:  # all changes of these slots count, and in their states no others
            of_forced = forced[moves.rows, moves.slots[:, 0]]
            counts = of_forced | (counts & ~forced.any(1)[moves.rows])
        made = self._apart(moves, gains, counts).nonzero()[:, 0]
        if not is_exporting() and len(made) == 0:
            return nowhere
        moves, changes = moves.of(made), [change[made] for change in changes]
        place = _places(moves, gains[made], actions.shape)  # (A,)
        sizes = _sizes(place, possible.n_slots)  # (P,)
        is_made = place < sizes[:, None]
        after, sums = values.after_several(moves.rows, changes, is_made)
        if restricts_pairs(self._conditions.rule):
            tried = torch.stack([moves.made(actions, one) for one in is_made])
            kept = _keep(self._conditions.rule, tried[1:])  # the best move alone keeps it
            after = torch.cat([after[:1], after[1:].masked_fill(~kept, -torch.inf)])
        best_value, best = after.max(0)  # (B,)
        is_better = best_value - values.now > least_gain
        if forced is not None:
            is_better = is_better | forced.any(1)
        taken = (place < sizes[best][moves.rows]) & is_better[moves.rows]
        self.actions = moves.made(actions, taken)
        everyone = torch.arange(actions.shape[0], device=actions.device)
        values.move(
            torch.where(is_better, best_value, values.now),
            [
                torch.where(is_better[:, None], new[best, everyone], old)
                for new, old in zip(sums, values.sums, strict=True)
            ],
        )
        return is_better

    def _valued(self, moves: Moves) -> tuple[Moves, list[torch.Tensor], torch.Tensor]:
        """Returns moves, how they change sums, and values after each; of some if time is up."""
        actions, values = self.actions, self._values
        # In a file, whose time is not limited, nobody knows how many moves there are.
        if not self._deadline.is_set or len(moves.rows) <= MOVES_AT_ONCE:
            changes = values.changes(actions, moves)
            return moves, changes, values.after(moves.rows, changes)
        numbers = torch.arange(len(moves.rows), device=actions.device)
        parts: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        pace = self._deadline.of_parts()
        for some in numbers.split(MOVES_AT_ONCE):
            if parts and not pace.allows(2):  # then moves are made, which takes as long as a part
                break
            with pace.timed():
                part = moves.of(some)
                changes = values.changes(actions, part)
                parts.append((changes, values.after(part.rows, changes)))
        of_members = [torch.cat(of_one) for of_one in zip(*(c for c, _ in parts), strict=True)]
        after = torch.cat([after for _, after in parts])
        return moves.of(numbers[: len(after)]), of_members, after

    def _apart(self, moves: Moves, gains: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Returns those moves that count and gain most of all that touch them, bool `(R,)`.

        Moves touch each other if they are of the same slot or, where what slots make of a choice
        together has a value, take or leave the same choice.
        """
        n_slots, n_rows = self._possible.n_slots, self.actions.shape[0]
        n = n_slots + self._possible.n_choices
        first = moves.rows[:, None] * n
        places = first + moves.slots  # (R, 2)
        if self._values.choices_touch:
            before = self.actions[moves.rows[:, None], moves.slots]
            places = torch.cat(
                [places, first + n_slots + before, first + n_slots + moves.choices], 1
            )
        keys = torch.where(counts, _keys(gains), NO_KEY)[:, None].expand_as(places)
        best = torch.full((n_rows * n,), NO_KEY, device=keys.device)
        best = best.scatter_reduce(0, places.flatten(), keys.flatten(), "amax")
        return (keys == best[places]).all(1) & counts


def _keys(gains: torch.Tensor) -> torch.Tensor:
    """Returns integers in the order of gains, in units of the least gain, `(R,)`.

    No two are equal, as both would be the best. Moves that are equal but for rounding, as those of
    slots that are alike, have the same order on every machine and in files.
    """
    order = torch.arange(gains.shape[0], device=gains.device)
    return gains.clamp(-MOST_KEY, MOST_KEY).round().long() * gains.shape[0] - order


def _places(moves: Moves, gains: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Returns how many of its state's moves gain more than each, `(R,)`.

    Args:
        moves: of different slots, so that the first one names a move of a state.
        gains: of each, `(R,)`.
        shape: of the actions, (B, N).
    """
    at = moves.rows, moves.slots[:, 0]
    keys = torch.full(shape, NO_KEY, device=gains.device).index_put(at, _keys(gains))
    is_before = keys[:, None] > keys[:, :, None]  # (B, N, N)
    return is_before.sum(2)[at]


def _sizes(place: torch.Tensor, n_slots: int) -> torch.Tensor:
    """Returns 1, 2, 4 .., numbers of moves that are tried together, up to all of them."""
    most = n_slots if is_exporting() else int(place.max()) + 1
    return torch.tensor([2**i for i in range((most - 1).bit_length() + 1)], device=place.device)


class _Possible:
    """Moves that the policy and the conditions leave."""

    def __init__(
        self, conditionals: Conditionals, conditions: Conditions, actions: torch.Tensor
    ) -> None:
        self._conditionals, self._conditions = conditionals, conditions
        self.n_slots = conditionals.slot_layout.n_slots
        self.n_choices = conditionals.slot_layout.max_choices
        self._log_share = math.log(conditions.action_flexibility)
        self._seen: torch.Tensor | None = None  # the last actions that logits were asked for
        self._look_at(actions)

    def _look_at(self, actions: torch.Tensor) -> None:
        """Finds out what slots may choose in view of all others, if that is not known."""
        if self._seen is actions:
            return
        logits = self._conditionals.given_others(actions)
        self._most = logits.amax(-1, keepdim=True)  # (B, N, 1)
        may = logits >= self._most + self._log_share
        self._may = _under_conditions(may, actions, self._conditions)  # (B, N, K)
        self._seen = actions

    def changes(self, actions: torch.Tensor) -> Moves:
        """Returns all changes of one slot."""
        self._look_at(actions)
        choices = torch.arange(self._may.shape[2], device=actions.device)
        is_other = choices != actions[..., None]
        row, slot, choice = (self._may & is_other).nonzero(as_tuple=True)
        return Moves(row, slot[:, None].expand(-1, 2), choice[:, None].expand(-1, 2))

    def forced(self, actions: torch.Tensor) -> torch.Tensor | None:
        """Returns slots `(B, N)` that may not keep their choice, None if there are none.

        A slot that may choose nothing keeps it.
        """
        self._look_at(actions)
        forced = ~self._may.gather(2, actions[..., None])[..., 0] & self._may.any(-1)
        return forced if is_exporting() or bool(forced.any()) else None

    def exchanges(self, actions: torch.Tensor) -> Moves:
        """Returns exchanges in which each of two slots takes the other's choice."""
        n_slots, allowed, rule = self.n_slots, self._conditions.allowed, self._conditions.rule
        self._look_at(actions)
        of_others = self._conditionals.of_others_choices(actions)  # (B, N, N)
        takes = of_others >= torch.maximum(self._most, of_others) + self._log_share
        if allowed is not None:
            takes = takes & allowed.gather(2, actions[:, None].expand(-1, n_slots, -1))
        if self._conditions.given is not None:
            takes = takes & (self._conditions.given == OPEN)[..., None]
        differ = actions[:, :, None] != actions[:, None]
        row, one, other = (takes & takes.mT & differ).triu(1).nonzero(as_tuple=True)
        slots = torch.stack([one, other], dim=1)
        moves = Moves(row, slots, actions[row[:, None], slots.flip(1)])
        if rule is None:
            return moves
        rule, after = of_states(rule, row), moves.of_each(actions)
        keeps = torch.ones_like(row, dtype=torch.bool)
        for place in (0, 1):  # each in view of all others, the other one of the two included
            slot, choice = slots[:, place, None], moves.choices[:, place, None]
            may = rule(after.scatter(1, slot, OPEN))  # (R, N, K)
            may = may.gather(1, slot[..., None].expand(-1, -1, may.shape[2]))[:, 0]
            keeps = keeps & may.gather(1, choice)[:, 0]
        return moves.of(keeps.nonzero()[:, 0])


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
    kept = [_allowed_by(rule, one).gather(2, one[..., None])[..., 0].all(1) for one in actions]
    return torch.stack(kept) if kept else torch.ones(0, actions.shape[1], dtype=torch.bool)
