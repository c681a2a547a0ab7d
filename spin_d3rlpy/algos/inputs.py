"""Observations and actions as users give them, checked before networks see them."""

from __future__ import annotations

import numpy as np
from d3rlpy.types import NDArray, Observation

from spin_d3rlpy.errors import InvalidObservationError


def check_observations(x: Observation, size: int) -> NDArray:
    """Returns observations as float32 `(B, size)`.

    Raises:
        InvalidObservationError: wrong shape, not numbers, or not finite.
    """
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise InvalidObservationError(
            f"Expected observations of shape (B, {size}), got rows of different lengths."
        ) from error
    if array.dtype.kind not in "biuf":
        raise InvalidObservationError(
            f"Expected observations of numbers, got an array of {array.dtype}. Flatten those of a "
            "Dict or Tuple as the data were: "
            "gymnasium.spaces.flatten(env.observation_space, observation)."
        )
    if array.ndim != 2 or array.shape[1] != size:
        raise InvalidObservationError(
            f"Expected observations of shape (B, {size}), got shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # said below
        array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array)).any(1).argmax())
        raise InvalidObservationError(
            f"Row {row} of the observations is not finite, or beyond what float32 holds (3.4e38)."
        )
    return array
