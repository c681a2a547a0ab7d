"""Networks of one training as the beginning of another's, also with other numbers of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

State = dict[str, torch.Tensor]


def interpolation(old: Sequence[int], new: Sequence[int]) -> NDArray[np.float32]:
    """Returns the matrix `(S', S)` that turns utilities of `old` choices into those of `new` ones.

    Choices of a slot are evenly spaced over the same range, so that a new choice between two old
    ones gets a mean of theirs (the idea of Growing Q-Networks, Seyde et al. 2024, from coarse to
    fine).

    Args:
        old: number of choices of each sub-action that the networks have, S together.
        new: number of choices that they shall have, S' together.

    Raises:
        ValueError: other numbers of sub-actions.
    """
    if len(old) != len(new):
        raise ValueError(
            f"Expected as many sub-actions as the networks have ({len(old)}); got {len(new)}."
        )
    matrix = np.zeros((sum(new), sum(old)), np.float32)
    row = column = 0
    for before, after in zip(old, new, strict=True):
        places = np.linspace(0, before - 1, after)
        for choice in range(before):
            distance = np.abs(places - choice)
            matrix[row : row + after, column + choice] = np.maximum(0.0, 1.0 - distance)
        row, column = row + after, column + before
    return matrix


def transferred(weights: Mapping[str, torch.Tensor], matrix: NDArray[np.float32]) -> State:
    """Returns the state of a factored critic with its heads' outputs multiplied by `matrix`."""
    stretch = torch.from_numpy(matrix)
    return {
        name: stretch @ tensor if ".head." in name else tensor for name, tensor in weights.items()
    }
