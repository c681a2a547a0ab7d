"""How well the data support a combination, according to a pre-trained ASM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.nvec import SlotLayout

# Rows that go through the model at once.
_ROWS_AT_ONCE = 4096


class MaskedModel(Protocol):
    """Interface of a masked model, such as `ActionStructureModel`."""

    layout: SlotLayout
    nvec: list[int]
    mask_ids: torch.Tensor
    training: bool

    def __call__(self, observations: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor: ...

    def train(self, mode: bool = True) -> Any: ...

    def slot_by_slot(self, observations: torch.Tensor) -> Any: ...


class LogLikelihood(NamedTuple):
    """Masked pseudo-log-likelihood of actions."""

    per_slot: torch.Tensor  # (B, N), `log p(a_i | s, all other sub-actions)`
    total: torch.Tensor  # (B,), the sum


def in_parts(
    asm: MaskedModel, compute: Callable[..., torch.Tensor], *rows: torch.Tensor | None
) -> torch.Tensor:
    """Computes something row by row, without dropout, some thousand rows at a time."""
    n = max(len(x) for x in rows if x is not None)
    was_training = asm.training
    asm.train(False)
    try:
        parts = [slice(i, i + _ROWS_AT_ONCE) for i in range(0, max(1, n), _ROWS_AT_ONCE)]
        return torch.cat([compute(*(None if x is None else x[p] for x in rows)) for p in parts])
    finally:
        asm.train(was_training)


@torch.no_grad()
def log_likelihood(
    asm: MaskedModel, observations: torch.Tensor, actions: torch.Tensor
) -> LogLikelihood:
    r"""Log-probability of each sub-action given the state and the other sub-actions.

    .. math:: \sum_i \log p(a_i | s, a_{-i})

    Low for a sub-action that the data never combine with the others, even if it is common by
    itself. Without dropout, for observations `(B, obs)` scaled as in pre-training and actions
    `(B, N)`.

    References:
        * Salazar et al., Masked Language Model Scoring, 2020, equation 2.

    Raises:
        InvalidActionSpaceError: actions outside the action space.
    """
    check_actions(asm, observations, actions, least=0)

    def score(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        columns = []
        for slot in range(asm.layout.n_slots):
            tokens = chosen.clone()
            tokens[:, slot] = asm.mask_ids[slot]
            log_p = asm.layout.split(asm(x, tokens)).log_softmax(-1)[:, slot]
            columns.append(log_p.gather(1, chosen[:, slot : slot + 1]))
        return torch.cat(columns, dim=1)

    per_slot = in_parts(asm, score, observations, actions.long())
    return LogLikelihood(per_slot, per_slot.sum(1))


def check_actions(
    asm: MaskedModel, observations: torch.Tensor, actions: torch.Tensor, least: int
) -> None:
    """Raises InvalidActionSpaceError unless actions are `(B, N)` choices of at least `least`."""
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
            f"{asm.nvec[slot] - 1}" + (" (-1: open)." if least < 0 else ".")
        )
