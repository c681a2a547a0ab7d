"""The decoder: chooses one slot after the other, each in view of those before it.

What slots are likely to choose comes from `Conditionals`: a product of independent slots, a network
that chooses in the slots' order, or a structure model. Which slot is next, what rules allow and
what is drawn by noise is the same for all of them. Exports can follow it: nothing is written in
place.

Axes: `B` rows, `N` slots, `K` most choices of a slot, `S` all choices, `C` slots that one pass of a
network looks at, `M` slots that are chosen at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, cast

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.rules import OPEN, RowMask, Rule
from spin_d3rlpy.errors import NoAllowedChoiceError
from spin_d3rlpy.nvec import SlotLayout, Slots, rows_of

# Which slot is next: the slots' order; the one with the most likely choice; the one whose best
# choice's probability leads most over the second best; the one whose logit or value does, which
# would lose most if another slot took its choice.
OrderName: TypeAlias = Literal["slots", "confidence", "margin", "regret"]
# Added to scores, so that the largest is a draw: flat (B, S), or a function that makes new noise.
# In any order but the slots' also (n, 1, S), the same for all states: rows are n actions of each,
# the first ones of all states first.
Noise: TypeAlias = torch.Tensor | Callable[[torch.Tensor], torch.Tensor]
# A temperature counts as at least this one, which is greedy but for ties: divided by less, scores
# would overflow, and forbidden ones be as good.
SMALLEST_TEMPERATURE = 1e-6


class OrderedConditionals(Protocol):
    """Logits of one slot after the other, in view of the choices of those before it."""

    slot_layout: SlotLayout

    def all_open(self) -> torch.Tensor:
        """Returns actions `(B, N)` without a choice, -1."""

    def logits(self, slot: int) -> torch.Tensor:
        """Returns the logits of an open slot, `(B, m_i)`."""

    def choose(self, slot: int, choice: torch.Tensor) -> None:
        """Fills an open slot with choices `(B,)`."""


class LogitsInAnyOrder(Protocol):
    """Logits of any slots, in view of the choices of any others."""

    slot_layout: SlotLayout

    def all_open(self) -> torch.Tensor:
        """Returns actions `(B, N)` without a choice, -1."""

    def logits_given(self, actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(B, C, K)` of some slots.

        They are in view of actions `(B, N)`, -1 where open, whatever `choose` was told.
        """


class Conditionals(OrderedConditionals, LogitsInAnyOrder, Protocol):
    """Also of each slot in view of all others."""

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits in view of all others' choices `(B, N)`, `(B, N, K)`."""

    def of_others_choices(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits of all others' choices, `(B, N, N)`.

        As if the other one's choice were free, if one pass of a network can tell.
        """


class IndependentConditionals:
    """Conditionals of independent slots: what the others choose changes nothing.

    Args:
        slot_layout: of the action.
        table: logits or values of all choices, `(B, N, K)`; `-inf` is no choice.
    """

    def __init__(self, slot_layout: SlotLayout, table: torch.Tensor) -> None:
        self.slot_layout, self.table = slot_layout, table

    def all_open(self) -> torch.Tensor:
        return torch.full_like(self.table[..., 0], OPEN, dtype=torch.int64)

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        return self.table

    def of_others_choices(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits of all others' choices, `(B, N, N)`."""
        return self.table.gather(2, actions[:, None].expand(-1, actions.shape[1], -1))

    def logits(self, slot: int) -> torch.Tensor:
        return self.table[:, slot, : self.slot_layout.nvec[slot]]

    def choose(self, slot: int, choice: torch.Tensor) -> None:
        """Does nothing."""

    def logits_given(self, actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        return rows_of(self.table, slots)


@dataclasses.dataclass(frozen=True)
class Passes:
    """How many slots are chosen by what one pass of a network says.

    Args:
        slots: most slots of one pass.
        differing: they are chosen at once, if their choices differ; those that repeat a choice wait
            for a later pass. Otherwise one after the other, each in view of the rule alone.
        entropy_bound: instead of these: as many slots as keep the sum of their entropies (nats),
            without the largest, at most here.
        considered: slots that a pass looks at: first all, then those that were the surest when they
            were last looked at. None looks at all of them each time.
    """

    slots: int = 1
    differing: bool = False
    entropy_bound: float | None = None
    considered: int | None = None


def decode(
    conditionals: OrderedConditionals | LogitsInAnyOrder,
    order: OrderName | torch.Tensor = "slots",
    rule: Rule | None = None,
    noise: Noise | None = None,
    *,
    given: torch.Tensor | None = None,
    temperature: float = 1.0,
    passes: Passes = Passes(),
    otherwise: torch.Tensor | None = None,
    urgency: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns actions `(B, N)`: each slot's best choice, in view of those made before.

    Args:
        conditionals: of the states, with all slots open. Any order but the slots' asks for
            `LogitsInAnyOrder`.
        order: see `OrderName`; or when each slot is chosen, `(B, N)`, smallest first. In the slots'
            order a choice is not in view of what is given for later slots.
        rule: see `spin_d3rlpy.asm.rules`. Among independent slots the result keeps it, and need not
            be the best action that does.
        noise: Gumbel noise for a sample; None takes the best choices.
        given: `(B, N)` choices that are made already, -1 where open.
        temperature: by which scores are divided before noise is added.
        passes: how many slots are chosen at a time; in the slots' order one.
        otherwise: scores `(B, N, K)` that count where the rule leaves no choice with a score; of
            independent slots only.
        urgency: see `urgency_of`, `(B, N)`, if it is known: the first pass then looks at few slots.

    Raises:
        NoAllowedChoiceError: nothing is allowed for a slot. A file has the choice -1 there.
    """
    draw = _Draw(noise, temperature)
    if isinstance(conditionals, IndependentConditionals) and not restricts_pairs(rule):
        return _at_once(conditionals, rule, draw, given, otherwise)
    if isinstance(order, str) and order == "slots":
        return _in_slot_order(cast(OrderedConditionals, conditionals), rule, draw, given)
    in_any_order = cast(LogitsInAnyOrder, conditionals)
    filling = _Filling(in_any_order, order, rule, draw, given, passes, otherwise, urgency)
    return filling.filled()


def decode_in_groups(
    conditionals: LogitsInAnyOrder, n_groups: int, noise: torch.Tensor
) -> torch.Tensor:
    """Returns actions `(B, N)` in a few passes: every `n_groups`-th slot at once.

    Slots that are next to each other, which mostly belong together, are in different groups; those
    of a group are chosen as if independent of each other, in view of all groups before.

    Args:
        conditionals: of the states.
        n_groups: passes at most.
        noise: added to logits, flat `(B, S)`.
    """
    actions, noise = conditionals.all_open(), conditionals.slot_layout.split(noise, fill=0.0)
    numbers = torch.arange(actions.shape[1], device=actions.device).expand_as(actions)
    for first in range(min(n_groups, conditionals.slot_layout.n_slots)):
        slots = slice(first, None, n_groups)
        choices = (conditionals.logits_given(actions, slots) + noise[:, slots]).argmax(-1)
        actions = actions.scatter(1, numbers[:, slots], choices)
    return actions


@dataclasses.dataclass(frozen=True)
class _Draw:
    """How a choice is made: the largest score, divided by a temperature, plus noise."""

    noise: Noise | None
    temperature: float

    def of(self, slot_layout: SlotLayout) -> torch.Tensor | None:
        """Returns the given noise by slot, `(B, N, K)`."""
        is_given = isinstance(self.noise, torch.Tensor)
        return slot_layout.split(cast(torch.Tensor, self.noise), fill=0.0) if is_given else None

    def __call__(self, scores: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Adds noise to scores, both `(..., K)`; `noise` is theirs of what `of` returns."""
        if self.temperature != 1.0:
            scores = scores / max(self.temperature, SMALLEST_TEMPERATURE)
        if noise is not None:
            return scores + noise
        return scores + self.noise(scores) if callable(self.noise) else scores


def restricts_pairs(rule: Rule | None) -> bool:
    """Whether what a slot may choose depends on what others choose."""
    return rule is not None and not isinstance(rule, RowMask)


def _at_once(
    conditionals: IndependentConditionals,
    rule: Rule | None,
    draw: _Draw,
    given: torch.Tensor | None,
    otherwise: torch.Tensor | None,
) -> torch.Tensor:
    """Chooses all slots, of which none depends on another one."""
    slot_layout, scores = conditionals.slot_layout, conditionals.table
    if rule is None:
        choices = draw(scores, draw.of(slot_layout)).argmax(-1)
    else:
        actions = conditionals.all_open() if given is None else given
        scores = _allowed(scores, rule(actions), otherwise)
        choices = choice_of(draw(scores, draw.of(slot_layout)))
        slots = torch.arange(slot_layout.n_slots, device=choices.device).expand_as(choices)
        _require_choices((choices == OPEN) & (actions == OPEN), slots, actions, rule)
    return choices if given is None else torch.where(given == OPEN, choices, given)


def _in_slot_order(
    conditionals: OrderedConditionals,
    rule: Rule | None,
    draw: _Draw,
    given: torch.Tensor | None,
) -> torch.Tensor:
    """Chooses the same slot in all rows, and computes its logits alone."""
    slot_layout = conditionals.slot_layout
    noise = (
        draw.noise.split(slot_layout.nvec, dim=-1) if isinstance(draw.noise, torch.Tensor) else None
    )
    before = conditionals.all_open() if given is None else given  # (B, N)
    choices: list[torch.Tensor] = []
    for slot in range(slot_layout.n_slots):
        scores = draw(conditionals.logits(slot), None if noise is None else noise[slot])
        if rule is None:
            choice = scores.argmax(-1)
        else:
            partial = torch.cat([*(c[:, None] for c in choices), before[:, slot:]], dim=1)
            may = rule(partial)[:, slot, : scores.shape[1]]
            choice = choice_of(scores.masked_fill(~may, -torch.inf))
            stuck = (choice == OPEN) & (before[:, slot] == OPEN)
            slots = torch.full_like(choice, slot)
            _require_choices(stuck[:, None], slots[:, None], partial, rule)
        if given is not None:
            choice = torch.where(given[:, slot] == OPEN, choice, given[:, slot])
        choices.append(choice)
        # In a file, -1 is no choice.
        conditionals.choose(slot, choice if rule is None else choice.clamp(min=0))
    return torch.stack(choices, dim=-1)


class _Filling:
    """Actions whose slots are filled pass by pass, in an order of each row's own."""

    def __init__(
        self,
        conditionals: LogitsInAnyOrder,
        order: OrderName | torch.Tensor,
        rule: Rule | None,
        draw: _Draw,
        given: torch.Tensor | None,
        passes: Passes,
        otherwise: torch.Tensor | None,
        urgency: torch.Tensor | None,
    ) -> None:
        self._conditionals, self._n_slots = conditionals, conditionals.slot_layout.n_slots
        self._order, self._rule, self._passes = order, rule, passes
        self._draw, self._noise = draw, draw.of(conditionals.slot_layout)
        self._otherwise = otherwise
        self._actions = conditionals.all_open() if given is None else given
        self._is_open = self._actions == OPEN
        # Whether every row has an open slot in each of N passes, and none after.
        self._is_regular = given is None and passes.slots == 1 and passes.entropy_bound is None
        self._last_urgency = urgency  # (B, N), as last looked at
        rows = torch.arange(self._actions.shape[0], device=self._actions.device)
        self._rows = self._noise_rows = rows[:, None]  # (B, 1), of actions and of their noise
        if self._noise is not None and self._noise.dim() == 4:
            self._noise = self._noise[:, 0]
            of_states = rows.unflatten(0, (len(self._noise), -1))  # (n, B / n)
            numbers = torch.arange(len(self._noise), device=rows.device)[:, None]
            self._noise_rows = numbers.expand_as(of_states).flatten()[:, None]

    def filled(self) -> torch.Tensor:
        """Returns actions `(B, N)` without open slots."""
        for step in range(self._n_slots):  # every pass fills a slot at least
            if not (self._is_regular or is_exporting() or bool(self._is_open.any())):
                break
            slots = self._slots_to_look_at(step)
            scores = self._conditionals.logits_given(self._actions, slots)
            if self._passes.entropy_bound is not None:
                self._fill_within(scores, self._passes.entropy_bound)
            elif self._passes.differing:
                self._fill(scores, slots, self._passes.slots)
            else:
                for _ in range(self._passes.slots):
                    self._fill(scores, slots, 1)
        return self._actions

    def _slots_to_look_at(self, step: int) -> torch.Tensor | None:
        """Returns slots `(B, C)`; None for all."""
        considered = self._passes.considered
        if self._last_urgency is None or considered is None or considered >= self._n_slots:
            return None
        # After a step, one slot at least is filled.
        n = min(considered, self._n_slots - step)
        if not (self._is_regular or is_exporting()):
            n = min(n, int(self._is_open.sum(1).max()))
        return self._last_urgency.masked_fill(~self._is_open, -torch.inf).topk(n, dim=1).indices

    def _fill(
        self,
        scores: torch.Tensor,
        slots: torch.Tensor | None,
        n: int,
        among: torch.Tensor | None = None,
        urgency: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fills the `n` most urgent open slots of each row, and returns which, `(B, n)`.

        Args:
            scores: `(B, C, K)`.
            slots: whose scores they are, `(B, C)`, of all if None.
            n: how many; fewer where fewer are open, or repeat another's choice.
            among: bool `(B, N)`, which may be filled; by default those that are open.
            urgency: `(B, N)`, instead of one by the rule's scores.
        """
        allowed = self._allowed(scores, slots)
        is_open = rows_of(self._is_open if among is None else among, slots)
        if isinstance(self._order, torch.Tensor):
            urgency = rows_of(-self._order, slots)
        elif urgency is None:
            urgency = urgency_of(allowed, self._order)
            if self._rule is not None:  # what has no choice left says so at once
                urgency = urgency.masked_fill((allowed == -torch.inf).all(-1), torch.inf)
        urgency = urgency.masked_fill(~is_open, -torch.inf)
        if self._passes.considered is not None:
            last = self._last_urgency
            self._last_urgency = urgency if slots is None else last.scatter(1, slots, urgency)  # type: ignore[union-attr]
        if n == 1:
            place = urgency.argmax(1, keepdim=True)
        else:
            place = urgency.topk(min(n, urgency.shape[1]), dim=1).indices
        filled = place if slots is None else slots.gather(1, place)
        waits = None if self._is_regular else urgency.gather(1, place) == -torch.inf
        self._choose(allowed[self._rows, place], filled, waits)
        return filled

    def _fill_within(self, scores: torch.Tensor, bound: float) -> None:
        """Fills as many slots as keep the sum of entropies, without the largest, within a bound."""
        entropy = _entropies(scores)  # (B, N)
        if not restricts_pairs(self._rule):  # none depends on another's choice in this pass
            ranks = self._order if isinstance(self._order, torch.Tensor) else entropy
            sure = _sure_slots(entropy, ranks, self._is_open, bound)
            slots = torch.arange(self._n_slots, device=scores.device).expand_as(sure)
            self._choose(self._allowed(scores, None), slots, ~sure)
            return
        spent = torch.zeros_like(entropy[:, :1])
        for _ in range(self._n_slots):
            # The sum so far lacks the next slot's entropy, which is the largest.
            among = self._is_open & (spent <= bound)
            if not bool(among.any()):
                break
            slot = self._fill(scores, None, 1, among, -entropy)
            spent = spent + entropy.gather(1, slot) * among.any(1, keepdim=True)

    def _choose(
        self, scores: torch.Tensor, slots: torch.Tensor, waits: torch.Tensor | None
    ) -> None:
        """Fills slots `(B, M)` by allowed scores `(B, M, K)`, but for those that wait."""
        noise = None if self._noise is None else self._noise[self._noise_rows, slots]
        drawn = self._draw(scores, noise)
        if self._rule is None:
            choice = drawn.argmax(-1)
        else:
            choice = choice_of(drawn)
            stuck = choice == OPEN if waits is None else (choice == OPEN) & ~waits
            _require_choices(stuck, slots, self._actions, self._rule)
        if waits is not None:
            if self._passes.differing:
                waits = waits | _repeats(choice)
            choice = torch.where(waits, self._actions.gather(1, slots), choice)
        self._actions = self._actions.scatter(1, slots, choice)
        if self._rule is None:
            self._is_open = self._actions == OPEN
        else:  # in a file, a slot may have got no choice
            still_open = torch.zeros_like(slots, dtype=torch.bool)
            if waits is not None:
                still_open = waits & self._is_open.gather(1, slots)
            self._is_open = self._is_open.scatter(1, slots, still_open)

    def _allowed(self, scores: torch.Tensor, slots: Slots) -> torch.Tensor:
        """Returns scores of what the rule allows, `-inf` elsewhere."""
        if self._rule is None:
            return scores
        return _allowed(scores, rows_of(self._rule(self._actions), slots), self._otherwise)


def urgency_of(scores: torch.Tensor, order: OrderName) -> torch.Tensor:
    """Returns how early each slot should be chosen, `(B, N)`, by scores `(B, N, K)`."""
    if order == "regret":
        return _lead(scores)
    log_p = scores.log_softmax(-1)
    return _lead(log_p.exp()) if order == "margin" else log_p.amax(-1)


def _lead(scores: torch.Tensor) -> torch.Tensor:
    """Returns by how much the best choice leads over the second best, the best one's if alone."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    best = scores.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def choice_of(scores: torch.Tensor) -> torch.Tensor:
    """Returns the best choice by scores `(..., K)`, -1 where all are `-inf`, `(...)`."""
    best, choice = scores.max(-1)
    return torch.where(best == -torch.inf, OPEN, choice)


def _allowed(
    scores: torch.Tensor, may: torch.Tensor, otherwise: torch.Tensor | None
) -> torch.Tensor:
    """Returns scores of what may be chosen, `-inf` elsewhere; see `decode`."""
    allowed = scores.masked_fill(~may, -torch.inf)
    if otherwise is None:
        return allowed
    nothing = (allowed == -torch.inf).all(-1, keepdim=True)
    return torch.where(nothing, otherwise.masked_fill(~may, -torch.inf), allowed)


def _repeats(choices: torch.Tensor) -> torch.Tensor:
    """Returns which choices `(B, M)` one before them has made, bool."""
    same = choices[:, :, None] == choices[:, None]
    return same.tril(-1).any(-1)


def _sure_slots(
    entropy: torch.Tensor, ranks: torch.Tensor, is_open: torch.Tensor, bound: float
) -> torch.Tensor:
    """Returns which open slots `(B, N)` are chosen in one pass.

    In order of rank, as many as keep the sum of the entropies before theirs below the bound; the
    first one always.
    """
    order = ranks.masked_fill(~is_open, torch.inf).argsort(1)
    in_order = entropy.masked_fill(~is_open, torch.inf).gather(1, order)
    before = in_order.cumsum(1) - in_order
    # Closed slots come last, where the sums are infinite or undefined.
    sure = (before <= bound).scatter(1, order, before <= bound)
    return sure & is_open


def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """Returns the entropy in nats of each slot's distribution, `(B, N)`, by logits `(B, N, K)`."""
    log_p = logits.log_softmax(-1)
    return -torch.where(log_p.isfinite(), log_p.exp() * log_p, 0.0).sum(-1)


def _require_choices(
    stuck: torch.Tensor, slots: torch.Tensor, actions: torch.Tensor, rule: Rule | None
) -> None:
    """Raises NoAllowedChoiceError if one of slots `(B, M)` is stuck in view of actions `(B, N)`."""
    if is_exporting() or getattr(rule, "always_possible", False):
        return  # a recorded update cannot wait for the answer
    if not bool(stuck.any()):
        return
    row, place = stuck.nonzero()[0].tolist()
    raise NoAllowedChoiceError(
        f"No choice is allowed for slot {int(slots[row, place])} in view of "
        f"{actions[row].tolist()} (-1: open). Expected a rule that allows only what can be "
        "completed; loosen it, or what is given."
    )
