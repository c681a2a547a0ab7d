"""Support and completion of actions under a pre-trained ASM."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.nvec import SlotLayout

UNSPECIFIED = -1
# Rows that go through the model at once.
_ROWS_AT_ONCE = 4096


class MaskedModel(Protocol):
    """Interface of a masked model, such as `ActionStructureModel`."""

    layout: SlotLayout
    nvec: list[int]
    mask_ids: torch.Tensor
    training: bool

    def __call__(self, observations: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of all slots `(B, S)`."""

    def train(self, mode: bool = True) -> Any:
        """Switches dropout on or off."""


class LogLikelihood(NamedTuple):
    """Masked pseudo-log-likelihood of actions.

    Args:
        per_slot: `(B, N)`, `log p(a_i | s, all other sub-actions)`.
        total: `(B,)`, the sum.
    """

    per_slot: torch.Tensor
    total: torch.Tensor


@torch.no_grad()
def log_likelihood(
    asm: MaskedModel, observations: torch.Tensor, actions: torch.Tensor
) -> LogLikelihood:
    r"""Log-probability of each sub-action given the state and the other sub-actions.

    .. math:: \sum_i \log p(a_i | s, a_{-i})

    Low for a sub-action that the data never combine with the others, even if it is common by
    itself. Without dropout.

    References:
        * Salazar et al., Masked Language Model Scoring, 2020, equation 2.

    Args:
        asm: a model pre-trained by masked action modeling.
        observations: `(B, obs)`, scaled as in pre-training.
        actions: `(B, N)` choices.

    Raises:
        InvalidActionSpaceError: actions outside the action space.
    """
    _check(asm, observations, actions, least=0)
    n = asm.layout.n_slots
    was_training = asm.training
    asm.train(False)
    columns = []
    for slot in range(n):
        tokens = actions.long().clone()
        tokens[:, slot] = asm.mask_ids[slot]
        chunks = [
            asm.layout.split(asm(x, t)).log_softmax(-1)[:, slot]
            for x, t in zip(
                observations.split(_ROWS_AT_ONCE), tokens.split(_ROWS_AT_ONCE), strict=True
            )
        ]
        columns.append(torch.cat(chunks).gather(1, actions[:, slot : slot + 1].long()))
    asm.train(was_training)
    per_slot = torch.cat(columns, dim=1)
    return LogLikelihood(per_slot, per_slot.sum(1))


@torch.no_grad()
def complete(
    asm: MaskedModel, observations: torch.Tensor, partial_actions: torch.Tensor
) -> torch.Tensor:
    """Fills in unspecified sub-actions, the most confident one of each row first.

    Each of at most N passes fills one sub-action per row, given all earlier ones. Without dropout.

    Args:
        asm: a model pre-trained by masked action modeling.
        observations: `(B, obs)`, scaled as in pre-training.
        partial_actions: `(B, N)` choices, -1 where unspecified.

    Returns:
        `(B, N)` int64 choices; specified ones are unchanged.

    Raises:
        InvalidActionSpaceError: entries are neither choices of this action space nor -1.
    """
    _check(asm, observations, partial_actions, least=UNSPECIFIED)
    was_training = asm.training
    asm.train(False)
    parts = [
        _complete(asm, x, partial)
        for x, partial in zip(
            observations.split(_ROWS_AT_ONCE), partial_actions.split(_ROWS_AT_ONCE), strict=True
        )
    ]
    asm.train(was_training)
    return torch.cat(parts)


def _complete(asm: MaskedModel, observations: torch.Tensor, partial: torch.Tensor) -> torch.Tensor:
    actions = partial.long().clone()
    open_slots = actions == UNSPECIFIED
    while (rows := open_slots.any(1).nonzero()[:, 0]).numel():
        tokens = torch.where(open_slots[rows], asm.mask_ids, actions[rows])
        log_p = asm.layout.split(asm(observations[rows], tokens)).log_softmax(-1)  # (R, N, K)
        best, choice = log_p.max(-1)
        slot = best.masked_fill(~open_slots[rows], -torch.inf).argmax(1)
        actions[rows, slot] = choice[torch.arange(len(rows), device=slot.device), slot]
        open_slots[rows, slot] = False
    return actions


def _check(asm: MaskedModel, observations: torch.Tensor, actions: torch.Tensor, least: int) -> None:
    expected = (len(observations), asm.layout.n_slots)
    if tuple(actions.shape) != expected or actions.is_floating_point():
        raise InvalidActionSpaceError(
            f"Expected integer actions of shape {expected} for {len(observations)} "
            f"observations, got {actions.dtype} of shape {tuple(actions.shape)}."
        )
    wrong = ((actions < least) | (actions >= asm.mask_ids)).nonzero()
    if len(wrong):
        row, slot = wrong[0].tolist()
        raise InvalidActionSpaceError(
            f"Sub-action {slot} of row {row} is {int(actions[row, slot])}; expected {least} to "
            f"{asm.nvec[slot] - 1}" + (" (-1: unspecified)." if least == UNSPECIFIED else ".")
        )
