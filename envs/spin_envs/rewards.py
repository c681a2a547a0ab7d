"""Rewards of other tasks in the suite's environments, computed from what their datasets hold.

Each is a function of the observation after a step, `(..., obs)` to `(...)` from 0 to 1, so that a
logged dataset can be relabeled exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reward = Callable[[NDArray[np.float32]], NDArray[Any]]

_CHEETAH_SPEED = 8  # of the torso along the track, in m/s
# NumPy 1 would compute in float64 with a plain number and one observation.
_FULL_SPEED = np.float32(10.0)  # that the suite's run pays 1 for
_HALF_SPEED = np.float32(5.0)
_ONE = np.float32(1.0)
_FINGER_TIP = slice(2, 4)  # of the spinner, from its hinge, in m
_TIP_LENGTH = 0.13
_TARGET_RADIUS = 0.07  # of the suite's turn_easy


def _backward(observations: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.clip(-observations[..., _CHEETAH_SPEED] / _FULL_SPEED, 0.0, 1.0))


def _half_speed(observations: NDArray[Any]) -> NDArray[Any]:
    off = np.abs(observations[..., _CHEETAH_SPEED] - _HALF_SPEED)
    return np.asarray(np.clip(_ONE - off / _HALF_SPEED, 0.0, 1.0))


def _turn(observations: NDArray[Any]) -> NDArray[Any]:
    tip = observations[..., _FINGER_TIP] - np.array([0.0, _TIP_LENGTH], np.float32)
    return np.asarray(np.linalg.norm(tip, axis=-1) <= _TARGET_RADIUS, np.float32)


# By name: for cheetah to run backward, or at 5 m/s; for finger to turn the spinner upright and keep
# it there, as in the suite's turn_easy with a fixed target.
REWARDS: dict[str, Reward] = {"backward": _backward, "half-speed": _half_speed, "turn": _turn}
# The domain whose observations a reward reads.
DOMAINS = {"backward": "cheetah", "half-speed": "cheetah", "turn": "finger"}
