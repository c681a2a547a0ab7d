"""Coordinate ascent, plainly: what a search by rounds of moves is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from spin_d3rlpy.asm.decoding import Conditionals


def ascend(
    value: Callable[[torch.Tensor], torch.Tensor],
    conditionals: Conditionals,
    actions: torch.Tensor,
    action_flexibility: float,
    sweeps: int = 20,
) -> torch.Tensor:
    """Returns actions `(B, N)` whose slots were given their best supported choice in turn.

    `value` gives values `(B,)` of actions.
    """
    for _ in range(sweeps):
        start = actions
        for slot in range(actions.shape[1]):
            logits = conditionals.given_others(actions)[:, slot]
            may = logits >= logits.amax(-1, keepdim=True) + math.log(action_flexibility)
            tried = actions[:, None].repeat(1, may.shape[1], 1)  # (B, K, N)
            tried[..., slot] = torch.arange(may.shape[1])
            values = torch.stack([value(tried[:, k]) for k in range(may.shape[1])], dim=1)
            best = values.masked_fill(~may, -torch.inf).argmax(1)
            actions = tried[torch.arange(len(actions)), best]
        if torch.equal(start, actions):
            break
    return actions
