"""Networks that score slots' choices by features: which one a layout asks for, slot after slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from spin_d3rlpy.asm.entities import (
    Attention,
    EntityConfig,
    PairScorer,
    PairScores,
    count_choices,
)
from spin_d3rlpy.asm.rules import OPEN
from spin_d3rlpy.asm.slot_scorer import SlotScorer
from spin_d3rlpy.nvec import SlotLayout, Slots, rows_of

Scorer: TypeAlias = PairScorer | SlotScorer


def create_scorer(observation_size: int, nvec: Sequence[int], config: EntityConfig) -> Scorer:
    """Returns an untrained network: of pairs where choices have features, else of slots.

    Raises:
        ValueError: a layout without features that slots share, or of other sizes.
    """
    by_pairs = config.layout.has_choice_features
    return (PairScorer if by_pairs else SlotScorer)(observation_size, nvec, config)


def score_all(
    scorer: Scorer,
    observations: torch.Tensor,
    tokens: torch.Tensor,
    attention: Attention | None = None,
) -> torch.Tensor:
    """Returns logits `(B, N, K)` of observations `(B, obs)` in view of tokens `(B, N)`.

    With `attention`, slots and choices first learn from each other.
    """
    state = scorer.open(observations)
    if attention is not None:
        state.attend(attention)
    logits = state.logits(state.made(tokens))
    return logits.expand(-1, scorer.features.n_slots, -1)


def score_in_order(
    scorer: Scorer, observations: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Returns logits `(B, N, K)` of slots, each in view of the tokens `(B, N)` before it alone."""
    state = scorer.open(observations)
    return state.logits(state.made_before(tokens))


class PairDrafts:
    """Logits of several actions of each state, which are looked up: two passes of a network in all.

    A choice's logit depends on whether a slot has made it. What else is made, of which the network
    sees a summary, does not count: these are drafts of actions, from which a search starts, and no
    samples. With 50 couriers a search returns the same from 32 of either.

    Args:
        scorer: the network.
        slot_layout: of the action.
        observations: `(B, obs)`.
        n: actions of each state; rows R are the first ones of all states, then the second ones.
    """

    def __init__(
        self, scorer: PairScorer, slot_layout: SlotLayout, observations: torch.Tensor, n: int
    ) -> None:
        self.slot_layout = slot_layout
        n_slots = slot_layout.n_slots
        tables = scorer.open(observations).logits_by_count()
        free, made = (table.expand(-1, n_slots, -1) for table in tables)
        self.of_states = free  # (B, N, K), of open actions
        self._difference = made - free
        # Of which state each row is, (R, 1).
        states = torch.arange(observations.shape[0], device=observations.device)
        self._state = states.repeat(n)[:, None]

    def all_open(self) -> torch.Tensor:
        """Returns actions `(R, N)` without a choice, -1."""
        n_slots = self.slot_layout.n_slots
        return torch.full_like(self._state, OPEN).expand(-1, n_slots)

    def logits_given(self, actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(R, C, K)` of slots; see `LogitsInAnyOrder`."""
        if not isinstance(slots, torch.Tensor):
            numbers = torch.arange(actions.shape[1], device=actions.device)
            slots = numbers if slots is None else numbers[slots]
        n_choices = self.slot_layout.max_choices
        counts = count_choices(torch.where(actions == OPEN, n_choices, actions), n_choices)
        is_made, at = counts.clamp(max=1.0)[:, None], (self._state, slots)
        return torch.addcmul(self.of_states[at], is_made, self._difference[at])


class EntityBySlot:
    """Logits by features, in view of any choices; see `spin_d3rlpy.asm.model.SlotBySlot`."""

    def __init__(
        self,
        scorer: Scorer,
        slot_layout: SlotLayout,
        observations: torch.Tensor,
    ) -> None:
        self._state, self.slot_layout = scorer.open(observations), slot_layout
        self._mask = slot_layout.max_choices  # all slots have as many choices
        shape = observations.shape[0], slot_layout.n_slots
        self._masked = torch.full(shape, self._mask, device=observations.device)
        self._made = self._state.made(self._masked)

    def all_open(self) -> torch.Tensor:
        """Returns actions `(B, N)` without a choice, -1."""
        return torch.full_like(self._masked, OPEN)

    def logits_given(self, actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(B, C, K)` of slots; see `LogitsInAnyOrder`."""
        made = self._state.made(torch.where(actions == OPEN, self._mask, actions))
        n_slots = rows_of(actions, slots).shape[1]
        return self._state.logits(made, slots).expand(-1, n_slots, -1)

    def logits(self, slot: int) -> torch.Tensor:
        """Returns a slot's logits, `(B, K)`."""
        return self._state.logits(self._made, slice(slot, slot + 1))[:, 0]

    def choose(self, slot: int, choice: torch.Tensor) -> None:
        """Takes over an open slot's choices `(B,)`."""
        self._made = self._state.with_choice(self._made, slot, choice)

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits in view of all others' choices `(B, N)`, `(B, N, K)`."""
        return self._state.given_others(actions)

    def of_others_choices(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits of all others' choices, `(B, N, N)`; see `Conditionals`.

        Of pairs it takes one pass, in which every choice that is made is made once less.
        """
        if isinstance(self._state, PairScores):
            logits = self._state.logits((self._state.made(actions) - 1.0).clamp(min=0.0))
        else:
            logits = self._state.given_others(actions)
        n_slots = self.slot_layout.n_slots
        others = actions[:, None].expand(-1, n_slots, -1)
        return logits.expand(-1, n_slots, -1).gather(2, others)
