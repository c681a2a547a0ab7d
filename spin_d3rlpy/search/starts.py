"""Where a search starts: it ends at the best action near its start, and another can be better."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spin_d3rlpy.critics.base import best_of

MOST_STARTS = 8
# Slots times slots, or twice the other choices where these are fewer, times starts: so grow the
# moves of a round and the number of rounds. Few slots need the starts more: of five slots
# (examples/offers) one start misses the best action of a third of the states or more, 20 slots
# (dispatch-n20) gain nothing by more starts. Of 16 bits (CoNE) one can miss all that is safe, and
# three return -21 where eight return -16.
MOST_WORK = 200
SLOTS_A_CHOICE = 2


def count_starts(nvec: Sequence[int]) -> int:
    """Returns from how many candidates a search starts; of one slot it sees all choices anyway.

    Args:
        nvec: number of choices of each slot.
    """
    n_slots, n_others = len(nvec), sum(nvec) - len(nvec)
    work = min(n_slots**2, SLOTS_A_CHOICE * n_others)
    return 1 if n_slots == 1 else max(1, min(MOST_STARTS, MOST_WORK // max(1, work)))


def best_different(actions: torch.Tensor, values: torch.Tensor, n: int) -> torch.Tensor:
    """Returns the best of candidates, no two alike unless there are fewer, `(n, B, N)`.

    Args:
        actions: candidates, `(A, B, N)`.
        values: by the critics, `(E, A, B)`; the least counts.
        n: how many; all candidates if there are fewer.
    """
    values, best = values.amin(0, keepdim=True), []
    for _ in range(min(n, len(actions))):
        best.append(best_of(actions, values))
        values = values.masked_fill((actions == best[-1]).all(-1), -torch.inf)
    return torch.stack(best)
