"""Choosing the surest slot first, one slot after the other, in view of those before it."""

from __future__ import annotations

import torch

from spin_d3rlpy.asm.choosing import choice_of, require_choices
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.rules import OPEN, Rule
from spin_d3rlpy.asm.sampling import urgency_of

# Scoring all pairs of 50 slots and choices before every choice costs four times the time of
# scoring these slots alone, for the same returns on `spin/dispatch-v0`.
CONSIDERED = 8


def choose_surest(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    order: str,
    noise: torch.Tensor | None = None,
    rule: Rule | None = None,
) -> torch.Tensor:
    """Returns actions `(B, N)` whose slots are chosen in the order of how sure they are.

    A model of features (`EntityConfig`) scores each slot for itself. There, only the slots that
    were surest when last looked at are scored again before each choice; every choice is made in
    view of all choices before it. The number of operations is fixed, so exports can follow.

    Args:
        asm: a model that was pre-trained with `masking="any_order"`.
        observations: `(B, obs)`, scaled as in pre-training.
        order: `"confidence"` or `"margin"`, see `spin_d3rlpy.asm.sampling.sample`.
        noise: Gumbel noise `(B, S)` for a sample; the most likely choices if None.
        rule: see `spin_d3rlpy.asm.rules`.

    Raises:
        NoAllowedChoiceError: nothing is allowed for a slot. A file has the choice -1 there.
    """
    n_slots = asm.layout.n_slots
    scores = _Scores(asm, observations)
    added = None if noise is None else asm.layout.split(noise)  # (B, N, K)
    tokens = asm.mask_ids.expand(observations.shape[0], -1)
    stuck = torch.zeros_like(tokens, dtype=torch.bool)
    urgency = torch.zeros(tokens.shape, device=tokens.device)  # of slots as last looked at
    for step in range(n_slots):
        is_open = tokens == asm.mask_ids
        looked_at = None
        if step > 0 and scores.by_slot and n_slots > CONSIDERED:
            looked_at = urgency.topk(min(CONSIDERED, n_slots - step), dim=1).indices  # (B, C)
        logits = scores.logits(tokens, looked_at)  # (B, C, K), C = N if all are looked at
        if rule is not None:
            may = rule(torch.where(is_open, OPEN, tokens))
            logits = logits.masked_fill(~_rows_of(may, looked_at), -torch.inf)
        now = urgency_of(logits, order)
        now = now.masked_fill(~_entries_of(is_open, looked_at), -torch.inf)
        place = now.argmax(1, keepdim=True)  # (B, 1)
        urgency = now if looked_at is None else urgency.scatter(1, looked_at, now)
        slot = place if looked_at is None else looked_at.gather(1, place)
        chosen = _rows_of(logits, place)  # (B, 1, K)
        choice = choice_of(chosen if added is None else chosen + _rows_of(added, slot))
        if rule is not None:
            stuck = stuck.scatter(1, slot, choice == OPEN)
            require_choices(stuck, torch.where(is_open, OPEN, tokens), rule)
        tokens = tokens.scatter(1, slot, choice.clamp(min=0))
        urgency = urgency.scatter(1, slot, torch.full_like(urgency[:, :1], -torch.inf))
    return torch.where(stuck, OPEN, tokens)


class _Scores:
    """Logits of slots in view of the tokens; a model of features reads the state once."""

    def __init__(self, asm: ActionStructureModel, observations: torch.Tensor) -> None:
        self._asm, self._observations = asm, observations
        self._state = None if asm.scorer is None else asm.scorer.open(observations)
        self.by_slot = self._state is not None

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
