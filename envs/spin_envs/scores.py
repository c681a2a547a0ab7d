"""Published reference scores and the normalized score they define."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# (environment id, bins) -> (random, expert): mean returns published with the discretized
# control benchmark of Beeson, Ireland and Montana (2024, arXiv 2411.11088).
REFERENCE_SCORES: dict[tuple[str, int], tuple[float, float]] = {
    ("spin/finger-spin-v0", 3): (4.36, 853.62),
    ("spin/fish-swim-v0", 3): (72.32, 418.58),
    ("spin/cheetah-run-v0", 3): (5.39, 664.57),
    ("spin/quadruped-walk-v0", 3): (121.37, 781.19),
    ("spin/humanoid-stand-v0", 3): (4.54, 711.9),
    ("spin/dog-trot-v0", 3): (7.32, 724.37),
    ("spin/dog-trot-v0", 10): (6.48, 736.95),
    ("spin/dog-trot-v0", 30): (6.39, 768.24),
    ("spin/dog-trot-v0", 50): (6.1, 752.58),
    ("spin/dog-trot-v0", 75): (6.31, 803.05),
    ("spin/dog-trot-v0", 100): (6.14, 756.86),
}

Returns = TypeVar("Returns", float, NDArray[np.float64])


def reference_scores(env_id: str, bins: int) -> tuple[float, float] | None:
    """Returns the (random, expert) mean returns of a task, or None where none are published."""
    return REFERENCE_SCORES.get((env_id, bins))


def normalized_score(env_id: str, bins: int, returns: Returns) -> Returns:
    """Rescales returns so that the random policy scores 0 and the expert 100.

    Raises:
        KeyError: no reference scores are published for this task and number of bins.
    """
    scores = reference_scores(env_id, bins)
    if scores is None:
        known = ", ".join(f"{e} with {b} bins" for e, b in REFERENCE_SCORES)
        raise KeyError(f"No reference scores for {env_id} with {bins} bins. Known: {known}.")
    low, high = scores
    return 100.0 * (returns - low) / (high - low)
