"""Filling in open slots by a masked model: which are chosen next, and what."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch

from spin_d3rlpy.asm.conditions import OrderName
from spin_d3rlpy.asm.rules import OPEN, Rule
from spin_d3rlpy.errors import NoAllowedChoiceError
from spin_d3rlpy.nvec import SlotLayout, gumbel_noise

# A temperature above 0 counts as at least this one, which is greedy but for ties.
SMALLEST_TEMPERATURE = 1e-6


class MaskedModel(Protocol):
    """Interface of a masked model, such as `ActionStructureModel`."""

    layout: SlotLayout
    nvec: list[int]
    mask_ids: torch.Tensor
    training: bool

    def __call__(self, observations: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor: ...

    def train(self, mode: bool = True) -> Any: ...

    def slot_by_slot(self, observations: torch.Tensor) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Fills in the open slots of actions, pass by pass; the fields are arguments of `sample`."""

    asm: MaskedModel
    temperature: float
    order: OrderName | list[int]
    rule: Rule | None
    slots_per_pass: int
    entropy_bound: float | None

    def __call__(
        self,
        observations: torch.Tensor,
        actions: torch.Tensor,
        mask: torch.Tensor | None,
        noise: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns `(R, N)` actions without open slots.

        Args:
            observations: `(R, obs)`.
            actions: -1 where open.
            mask: of allowed choices, bool `(R, N, K)`.
            noise: Gumbel noise `(R, S)`; fresh noise if None.

        Raises:
            NoAllowedChoiceError: nothing is allowed for an open slot.
        """
        asm, layout = self.asm, self.asm.layout
        ranks = _ranks(self.order, actions)
        added = None if noise is None else layout.split(noise, fill=0.0)  # (R, N, K)
        while bool((actions == OPEN).any()):
            tokens = torch.where(actions == OPEN, asm.mask_ids, actions)
            scores = layout.split(asm(observations, tokens))
            entropy = None if self.entropy_bound is None else _entropies(scores)  # (R, N)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            if entropy is not None and self.rule is None:
                actions = self._choose_sure(actions, scores, ranks, added, entropy)
            else:
                actions = self._choose_in_turn(actions, scores, ranks, added, entropy)
        return actions

    def _choose_sure(
        self,
        actions: torch.Tensor,
        scores: torch.Tensor,
        ranks: torch.Tensor | None,
        noise: torch.Tensor | None,
        entropy: torch.Tensor,
    ) -> torch.Tensor:
        """Chooses a pass's slots all at once: without a rule, none depends on another's choice."""
        assert self.entropy_bound is not None  # or there were no entropies
        sure = _sure_slots(entropy, ranks, actions == OPEN, self.entropy_bound)
        stuck = sure & (scores == -torch.inf).all(-1)
        slot = stuck.float().argmax(1)
        row = torch.arange(len(actions), device=actions.device)
        _require_choice(scores[row, slot], stuck.any(1), slot, actions)
        drawn = _with_noise(scores, self.temperature, noise)
        return torch.where(sure, drawn.argmax(-1), actions)

    def _choose_in_turn(
        self,
        actions: torch.Tensor,
        scores: torch.Tensor,
        ranks: torch.Tensor | None,
        noise: torch.Tensor | None,
        entropy: torch.Tensor | None,
    ) -> torch.Tensor:
        """Chooses a pass's slots one after the other, each in view of the rule."""
        bound, n_slots = self.entropy_bound, actions.shape[1]
        row = torch.arange(len(actions), device=actions.device)
        spent = torch.zeros(len(actions), device=actions.device)
        for _ in range(self.slots_per_pass if bound is None else n_slots):
            is_open = actions == OPEN
            if bound is not None:
                # The sum so far lacks the next slot's entropy, which is the largest.
                is_open = is_open & (spent <= bound)[:, None]
                if not bool(is_open.any()):
                    break
            may = scores
            if self.rule is not None:
                may = scores.masked_fill(~self.rule(actions), -torch.inf)
            if ranks is not None:
                urgency = -ranks
            else:
                urgency = urgency_of(may, self.order) if entropy is None else -entropy
            slot = urgency.masked_fill(~is_open, -torch.inf).argmax(1)
            chosen = may[row, slot]  # (R, K)
            unfinished = is_open.any(1)
            _require_choice(chosen, unfinished, slot, actions)
            own = None if noise is None else noise[row, slot]
            chosen = _with_noise(chosen, self.temperature, own)
            choice = torch.where(unfinished, chosen.argmax(1), actions[row, slot])
            actions = actions.index_put((row, slot), choice)
            if entropy is not None:
                spent = spent + entropy[row, slot] * unfinished
        return actions


def urgency_of(scores: torch.Tensor, order: OrderName | list[int] | str) -> torch.Tensor:
    """Returns how sure each slot's choice is, `(R, N)`, by scores `(R, N, K)`."""
    log_p = scores.log_softmax(-1)
    if order == "margin" and log_p.shape[-1] > 1:
        best = log_p.exp().topk(2, dim=-1).values
        return best[..., 0] - best[..., 1]
    return log_p.amax(-1)


def _with_noise(
    scores: torch.Tensor, temperature: float, noise: torch.Tensor | None
) -> torch.Tensor:
    """Returns scores whose largest is a draw at a temperature, by Gumbel noise (fresh if None)."""
    if temperature == 0.0:
        return scores
    # Divided by less, scores would overflow, and forbidden ones be as good.
    scaled = scores / max(temperature, SMALLEST_TEMPERATURE)
    return scaled + (gumbel_noise(scores) if noise is None else noise)


def _sure_slots(
    entropy: torch.Tensor, ranks: torch.Tensor | None, is_open: torch.Tensor, bound: float
) -> torch.Tensor:
    """Returns which open slots `(R, N)` are chosen in one pass.

    In order of rank, or of entropy, as many as keep the sum of the entropies before theirs below
    the bound; the first one always.
    """
    urgency = (entropy if ranks is None else ranks).masked_fill(~is_open, torch.inf)
    order = urgency.argsort(1)
    in_order = entropy.masked_fill(~is_open, torch.inf).gather(1, order)
    before = in_order.cumsum(1) - in_order
    # Closed slots come last, where the sums are infinite or undefined.
    sure = (before <= bound).scatter(1, order, before <= bound)
    return sure & is_open


def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """Returns the entropy in nats of each slot's distribution, `(R, N)`, by logits `(R, N, K)`."""
    log_p = logits.log_softmax(-1)
    return -torch.where(log_p.isfinite(), log_p.exp() * log_p, 0.0).sum(-1)


def _ranks(order: OrderName | list[int], partial: torch.Tensor) -> torch.Tensor | None:
    """Returns when each slot is chosen, `(R, N)`, smallest first; None if confidence says so."""
    if isinstance(order, str):
        return torch.rand(partial.shape, device=partial.device) if order == "random" else None
    ranks = torch.empty(len(order), device=partial.device)
    ranks[order] = torch.arange(len(order), dtype=ranks.dtype, device=partial.device)
    return ranks.expand_as(partial)


def _require_choice(
    scores: torch.Tensor, unfinished: torch.Tensor, slot: torch.Tensor, actions: torch.Tensor
) -> None:
    stuck = (unfinished & (scores == -torch.inf).all(1)).nonzero()
    if len(stuck):
        row = int(stuck[0])
        raise NoAllowedChoiceError(
            f"No choice is allowed for slot {int(slot[row])} in view of {actions[row].tolist()} "
            "(-1: open). Expected a rule that allows only what can be completed; loosen it, or "
            "what is given."
        )
