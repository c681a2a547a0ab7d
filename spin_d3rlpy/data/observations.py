"""Observations of nested spaces as flat vectors, a whole episode at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError


def flatten_observations(space: Space[Any], observations: Any, source: str) -> NDArray[Any]:
    """Returns an episode's observations as `(T + 1, obs)`.

    Entries equal `gymnasium.spaces.flatten` of single observations: dictionaries in their space's
    order, discrete parts one-hot.

    Raises:
        InvalidDatasetError: the space has another part, or an array of more dimensions.
    """
    if isinstance(space, Box) and len(space.shape) == 1:
        return np.asarray(observations)
    if not isinstance(space, Dict | Tuple):
        raise InvalidDatasetError(
            "Expected flat observations (a one-dimensional Box) or a Dict or Tuple of spaces, "
            f"{source} has {space}. Flatten them into a new dataset, for example with "
            "gymnasium.wrappers.FlattenObservation."
        )
    return np.concatenate(list(_parts(space, observations, source)), axis=1)


def _parts(space: Space[Any], observations: Any, source: str) -> list[NDArray[Any]]:
    if isinstance(space, Dict | Tuple):
        inside = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return [p for key, inner in inside for p in _parts(inner, observations[key], source)]
    rows = np.asarray(observations)
    rows = rows.reshape(len(rows), -1)
    if isinstance(space, Box | MultiBinary):
        return [rows]
    if isinstance(space, Discrete):
        return [_one_hot(rows[:, 0] - space.start, int(space.n))]
    if isinstance(space, MultiDiscrete):
        starts, sizes = space.start.ravel(), space.nvec.ravel()
        return [_one_hot(rows[:, i] - starts[i], int(size)) for i, size in enumerate(sizes)]
    raise InvalidDatasetError(
        f"Observations of {source} have a part that cannot be flattened to a vector: {space}."
    )


def _one_hot(choices: NDArray[Any], size: int) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = np.eye(size, dtype=np.float32)[choices]
    return rows
