"""Whether logged steps left the observation as it was, and whether that is a trap.

A function of the observation takes the same action again where an action does nothing. A policy
that only ever acts so can stand still for the rest of an episode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.search.trust_figures import mean_and_error

MOST_COMPARED, COMPARED_AT_ONCE = 65_536, 1024  # steps; an image is large
# Of a standard deviation. A robot that rests still drifts by the errors of its simulation.
SAME = 1e-4
# Share of steps. Of finger-spin's 5 % stand still, of assembly's, whose log leaves such states by
# chance, 0.2 %.
LEAST_SHARE = 0.01
# Of steps that repeat an action which did nothing, how many do nothing again. Who waits for
# something stands still as well, but not for ever.
LEAST_AGAIN = 0.95
# That they all do by chance, as often as other actions that are taken next do nothing. Of four
# cranes on a rail hardly any joint action is repeated, 3 to 10 times in logs of 24,000 steps, and
# others do nothing in 7 to 13 % of them.
MOST_BY_CHANCE = 1e-3


class Standstill(NamedTuple):
    """What standing still is like in a log.

    Attributes:
        share: of steps that left the observation as it was.
        is_trap: whether 1 % or more do, those surely return less than other steps (by two standard
            errors), and an action that did nothing and returned less does nothing again. (A crane
            that lifts a box may see the next one in its place.)
    """

    share: float
    is_trap: bool


def standstill(buffer: DeviceReplayBuffer) -> Standstill:
    """Looks at 65,536 steps at most."""
    index = followed_steps(buffer)
    if len(index) == 0:
        return Standstill(0.0, False)
    scale = _states(buffer, buffer.spread_index(COMPARED_AT_ONCE)).std(0, correction=0)
    stays = _stays(buffer, index, scale)
    share = float(stays.double().mean())
    if share < LEAST_SHARE:
        return Standstill(share, False)
    rewards = buffer.rewards[index]
    if not return_less(rewards, stays):
        return Standstill(share, False)
    did_nothing = stays & (rewards < rewards[~stays].mean())
    return Standstill(share, _goes_on(buffer, index[did_nothing], scale))


def followed_steps(buffer: DeviceReplayBuffer) -> torch.Tensor:
    """Returns numbers of 65,536 steps at most, `(B,)`, of none that end an episode."""
    index = buffer.spread_index(MOST_COMPARED)
    # An episode's last step is followed by itself.
    return index[buffer.stored.following[index] != index]


def _states(buffer: DeviceReplayBuffer, index: torch.Tensor) -> torch.Tensor:
    """Returns observations `(B, obs)` of steps."""
    return buffer.observations_at(buffer.observation_index[index]).float()


def _stays(buffer: DeviceReplayBuffer, index: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns which steps `(B,)` left the observation as it was, of none that end an episode."""
    parts = []
    for part in index.split(COMPARED_AT_ONCE):
        after = _states(buffer, buffer.stored.following[part].long())
        change = (after - _states(buffer, part)).abs()
        parts.append((change <= SAME * scale).all(-1))
    return torch.cat(parts)


def return_less(rewards: torch.Tensor, these: torch.Tensor) -> bool:
    """Returns whether some of the steps `(B,)` surely return less than others, by two errors."""
    if these.all():
        return False
    (of_these, error), (of_others, other) = map(mean_and_error, (rewards[these], rewards[~these]))
    return of_others - of_these > 2.0 * math.hypot(error, other)


def _goes_on(buffer: DeviceReplayBuffer, index: torch.Tensor, scale: torch.Tensor) -> bool:
    """Returns whether an action that did nothing in these steps does nothing again."""
    following, actions = buffer.stored.following, buffer.actions
    then = following[index].long()
    index, then = index[following[then] != then], then[following[then] != then]
    is_repeated = (actions[then] == actions[index]).flatten(1).all(1)
    stays = _stays(buffer, then, scale).double()
    again, others = stays[is_repeated], stays[~is_repeated]
    if len(again) == 0 or again.mean() < LEAST_AGAIN:
        return False
    by_others = (others.sum() + 1.0) / (len(others) + 2.0)  # half of them if there are none
    return float(by_others ** len(again)) <= MOST_BY_CHANCE
