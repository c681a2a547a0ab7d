"""Questions to a pre-trained ASM: does the data support this combination, and what completes it?"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.nvec import SlotLayout

UNSPECIFIED = -1
# Rows that go through the model at once.
_ROWS_AT_ONCE = 4096


class MaskedModel(Protocol):
    """What is asked of a model here; `ActionStructureModel`, whose methods these are, is one."""

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
        total: `(B,)`, their sum.
    """

    per_slot: torch.Tensor
    total: torch.Tensor


@torch.no_grad()
def log_likelihood(
    asm: MaskedModel, observations: torch.Tensor, actions: torch.Tensor
) -> LogLikelihood:
    r"""Asks of every sub-action how likely it is in this state beside the others.

    .. math:: \sum_i \log p(a_i | s, a_{-i})

    A sub-action that the data has never shown beside the others has a low value even if each of
    them is common by itself. Without dropout.

    References:
        * Salazar et al., Masked Language Model Scoring, 2020, equation 2.

    Args:
        asm: a model that was pre-trained by masked action modelling.
        observations: `(B, obs)`, scaled as in pre-training.
        actions: `(B, N)` choices.

    Raises:
        InvalidActionSpaceError: the actions are not choices of this action space.
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
    """Fills in the unspecified sub-actions, the one that is surest first.

    In each of at most N passes every row gets its most confident open sub-action, so that later
    ones are chosen in view of it. Without dropout.

    Args:
        asm: a model that was pre-trained by masked action modelling.
        observations: `(B, obs)`, scaled as in pre-training.
        partial_actions: `(B, N)` choices, -1 where unspecified.

    Returns:
        `(B, N)` int64 choices; those that were specified are as they were.

    Raises:
        InvalidActionSpaceError: the actions are neither choices of this action space nor -1.
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
            f"Expected integer actions of shape {expected} beside {len(observations)} "
            f"observations, got {actions.dtype} of shape {tuple(actions.shape)}."
        )
    wrong = ((actions < least) | (actions >= asm.mask_ids)).nonzero()
    if len(wrong):
        row, slot = wrong[0].tolist()
        raise InvalidActionSpaceError(
            f"Sub-action {slot} of row {row} is {int(actions[row, slot])}; expected {least} to "
            f"{asm.nvec[slot] - 1}" + (" (-1: unspecified)." if least == UNSPECIFIED else ".")
        )
