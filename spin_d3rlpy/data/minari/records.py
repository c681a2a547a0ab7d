"""What a dataset's record says of its data, and where episodes end: for checks and for readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.minari.staging import return_statistics

# Relative to 1 or to the largest entry: float32 rounding, far below what one wrong step changes.
_TOLERANCE = 1e-5


def misplaced_end(terminations: object, truncations: object, length: int, name: str) -> str:
    """Describes an end within an episode, or a missing one at its last step; empty if right.

    Args:
        terminations: `(T,)` bool.
        truncations: likewise.
        length: T.
        name: of the episode.
    """
    over = np.asarray(terminations).astype(bool) | np.asarray(truncations).astype(bool)
    if over.shape == (length,) and not over[:-1].any() and over[-1:].all():
        return ""
    return (
        f"Expected {name} to be terminated or truncated at its last step and at no other, it is at "
        f"steps {np.flatnonzero(over).tolist()[:5]} of {length}."
    )


def record_problems(
    metadata: Mapping[str, Any],
    lengths: Sequence[int],
    returns: Sequence[float],
    checksum: str | None,
) -> list[str]:
    """Returns how a dataset's data differ from what its metadata say of them.

    Args:
        metadata: of the dataset.
        lengths: steps of each episode.
        returns: undiscounted return of each episode.
        checksum: of the data; None if it was not computed.
    """
    recorded: dict[str, Any] = {
        "number of episodes": int(metadata["total_episodes"]),
        "number of transitions": int(metadata["total_steps"]),
    }
    computed: dict[str, Any] = {
        "number of episodes": len(returns),
        "number of transitions": sum(lengths),
    }
    if "checksum" in metadata:
        if checksum is not None:
            recorded["checksum of the data"] = metadata["checksum"]
            computed["checksum of the data"] = checksum
        groups = [("all episodes", metadata["returns"], returns)]
        first = 0
        for part in metadata.get("composition", []):
            policy, last = part["policy"], first + part["episodes"]
            groups.append((policy, part["returns"], returns[first:last]))
            steps = computed[f"number of transitions of {policy}"] = sum(lengths[first:last])
            recorded[f"number of transitions of {policy}"] = part.get("transitions", steps)
            first = last
        for whose, recorded_statistics, of_group in groups:
            statistics = return_statistics(of_group) if of_group else {}
            for key, value in recorded_statistics.items():
                recorded[f"{key} return of {whose}"] = value
                computed[f"{key} return of {whose}"] = statistics.get(key, math.nan)
    problems = []
    for what, value in recorded.items():
        near = isinstance(value, float) and is_close(np.array(computed[what]), np.array(value))
        if not near and computed[what] != value:
            problems.append(f"The {what} is {computed[what]}, the record says {value}.")
    return problems


def is_close(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether arrays are equal up to the rounding of float32."""
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0, atol=_TOLERANCE * scale))
