"""Choosing the surest slots first, each in view of those before it."""

from __future__ import annotations

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.choosing import choice_of, require_choices
from spin_d3rlpy.asm.drawing import urgency_of
from spin_d3rlpy.asm.entities import PairScorer
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.rules import OPEN, Rule

# Scoring all pairs of 50 slots and choices before every choice costs four times the time of
# scoring these slots alone, for the same returns on `spin/dispatch-v0`.
CONSIDERED = 8


def choose_surest(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    order: str,
    noise: torch.Tensor | None = None,
    rule: Rule | None = None,
    slots_per_pass: int = 1,
) -> torch.Tensor:
    """Returns actions `(B, N)` whose slots are chosen in the order of how sure they are.

    A model of features (`EntityConfig`) scores each slot for itself. There, only the slots that
    were surest when last looked at are scored again before each pass.

    Args:
        asm: a model that was pre-trained with `masking="any_order"`.
        observations: `(B, obs)`, scaled as in pre-training.
        order: `"confidence"` or `"margin"`, see `spin_d3rlpy.asm.sampling.sample`.
        noise: Gumbel noise `(B, S)` for a sample; the most likely choices if None.
        rule: see `spin_d3rlpy.asm.rules`. With one, slots are chosen one by one.
        slots_per_pass: most slots that one pass chooses, the surest ones, if their choices differ.
            A model that scores pairs of features sees earlier choices as properties of the
            choices, so that slots which take different ones hardly depend on each other. Other
            models choose slots one by one.

    Raises:
        NoAllowedChoiceError: nothing is allowed for a slot. A file has the choice -1 there.
    """
    scores = _Scores(asm, observations)
    added = None if noise is None else asm.layout.split(noise)  # (B, N, K)
    tokens = asm.mask_ids.expand(observations.shape[0], -1)
    together = slots_per_pass if rule is None and scores.of_pairs else 1
    looking = _Looking(asm.layout.n_slots, max(CONSIDERED, 2 * together), tokens)
    stuck = torch.zeros_like(tokens, dtype=torch.bool)
    # Every pass chooses a slot at least; a file always has the most passes.
    for step in range(asm.layout.n_slots):
        is_open = tokens == asm.mask_ids
        if together > 1 and not is_exporting() and not bool(is_open.any()):
            break
        looked_at = looking.slots(step) if scores.by_slot else None  # (B, C), C = N if None
        logits = scores.logits(tokens, looked_at)  # (B, C, K)
        if rule is not None:
            may = rule(torch.where(is_open, OPEN, tokens))
            logits = logits.masked_fill(~_rows_of(may, looked_at), -torch.inf)
        sure = urgency_of(logits, order)
        sure = sure.masked_fill(~_entries_of(is_open, looked_at), -torch.inf)
        now, place = sure.topk(min(together, sure.shape[1]), dim=1)  # (B, M)
        slot = place if looked_at is None else looked_at.gather(1, place)
        chosen = _rows_of(logits, place)  # (B, M, K)
        choice = choice_of(chosen if added is None else chosen + _rows_of(added, slot))
        if rule is not None:
            stuck = stuck.scatter(1, slot, choice == OPEN)
            require_choices(stuck, torch.where(is_open, OPEN, tokens), rule)
        choice = choice.clamp(min=0)
        if together > 1:
            waits = _repeats(choice) | (now == -torch.inf)  # or chosen before
            choice = torch.where(waits, tokens.gather(1, slot), choice)
            now = torch.where(waits, now, -torch.inf)
        else:
            now = torch.full_like(now, -torch.inf)
        tokens = tokens.scatter(1, slot, choice)
        looking.saw(looked_at, sure, slot, now)
    return torch.where(stuck, OPEN, tokens)


class _Looking:
    """Which slots are looked at before each pass: at first all, then those that were surest."""

    def __init__(self, n_slots: int, considered: int, tokens: torch.Tensor) -> None:
        self._n_slots, self._considered = n_slots, considered
        self._sure = torch.zeros(tokens.shape, device=tokens.device)  # (B, N), as last looked at

    def slots(self, step: int) -> torch.Tensor | None:
        """Returns slots `(B, C)`; None for all."""
        if step == 0 or self._n_slots <= self._considered:
            return None
        # After a step, one slot at least is chosen.
        n = min(self._considered, self._n_slots - step)
        return self._sure.topk(n, dim=1).indices

    def saw(
        self,
        looked_at: torch.Tensor | None,
        sure: torch.Tensor,
        slot: torch.Tensor,
        now: torch.Tensor,
    ) -> None:
        """Takes over how sure the slots were, and that of slots `(B, M)` now."""
        self._sure = sure if looked_at is None else self._sure.scatter(1, looked_at, sure)
        self._sure = self._sure.scatter(1, slot, now)


def _repeats(choices: torch.Tensor) -> torch.Tensor:
    """Returns which choices `(B, M)` one before them has made, bool."""
    same = choices[:, :, None] == choices[:, None]
    return same.tril(-1).any(-1)


class _Scores:
    """Logits of slots in view of the tokens; a model of features reads the state once."""

    def __init__(self, asm: ActionStructureModel, observations: torch.Tensor) -> None:
        self._asm, self._observations = asm, observations
        self._state = None if asm.scorer is None else asm.scorer.open(observations)
        self.by_slot = self._state is not None
        self.of_pairs = isinstance(asm.scorer, PairScorer)

    def logits(self, tokens: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
        """Returns logits `(B, C, K)` of slots `(B, C)`, of all if None."""
        layout = self._asm.layout
        if self._state is None:
            return layout.split(self._asm(self._observations, tokens))
        n_slots = layout.n_slots if slots is None else slots.shape[1]
        return self._state.logits(self._state.made(tokens), slots).expand(-1, n_slots, -1)


def _rows_of(table: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
    """Returns rows `(B, C, K)` of a table `(B, N, K)`, all if None."""
    if slots is None:
        return table
    return table.gather(1, slots[..., None].expand(-1, -1, table.shape[-1]))


def _entries_of(entries: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
    return entries if slots is None else entries.gather(1, slots)
