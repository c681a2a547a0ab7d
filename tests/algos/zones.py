"""Rules that see the state: neighbors do not choose in the same zone, which the state tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spin_d3rlpy.asm.rules import OPEN

N_ZONES = 3  # of which a slot between two others always has one left


def zones_of(states: torch.Tensor, n_choices: int) -> torch.Tensor:
    """Returns the zone of each choice by the first number of states, which is whole, `(R, K)`."""
    number = states[:, :1]
    assert torch.equal(number, number.round()), "the states are scaled"
    choices = torch.arange(n_choices, device=states.device)
    return torch.where(number % 2 == 1, choices % N_ZONES, choices // 2)


def apart(partial: torch.Tensor, zones: torch.Tensor) -> torch.Tensor:
    """Returns choices `(R, N, K)` of a zone in which no neighbor chooses; zone -1 is none."""
    chosen = torch.where(partial == OPEN, -1, zones.gather(1, partial.clamp(min=0)))  # (R, N)
    nobody = torch.full_like(chosen[:, :1], -1)
    before = torch.cat([nobody, chosen[:, :-1]], dim=1)[..., None]
    after = torch.cat([chosen[:, 1:], nobody], dim=1)[..., None]
    zones = zones[:, None]
    return ((zones != before) & (zones != after)) | (zones < 0)


def neighbors_apart(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The rule, for six choices a slot."""
    return apart(partial, zones_of(state, 6))


def count_broken(states: np.ndarray[Any, Any], actions: Any) -> int:
    """Returns how many actions `(B, N)` in states `(B, obs)` break the rule, by NumPy alone."""
    choices = np.asarray(actions)
    zone = np.where(states[:, :1] % 2 == 1, choices % N_ZONES, choices // 2)
    return int((zone[:, 1:] == zone[:, :-1]).any(1).sum())


def couriers_apart(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """No two couriers after each other are sent to the same quarter of `spin/dispatch`'s city."""
    n = partial.shape[1]
    orders = state[:, 2 * n : 5 * n].unflatten(1, (n, 3))
    quarter = (orders[..., 0] > 0.5).long() + 2 * (orders[..., 1] > 0.5).long()
    return apart(partial, torch.cat([quarter, torch.full_like(quarter[:, :1], -1)], dim=1))
