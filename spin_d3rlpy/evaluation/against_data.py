"""Whether a policy returns less in its environment than the data that it was trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
from d3rlpy.dataset import ReplayBufferBase

SURELY = 2.0  # standard errors


@dataclasses.dataclass(frozen=True)
class AgainstData:
    """Undiscounted returns of played episodes, and of the data's.

    Attributes:
        mean: of the played episodes' returns.
        standard_error: of `mean`.
        data_mean: of the data's episodes.
        data_standard_error: of `data_mean`.
    """

    mean: float
    standard_error: float
    data_mean: float
    data_standard_error: float

    @property
    def is_below(self) -> bool:
        """Whether the policy returns less, by more than two standard errors of the difference."""
        error = np.hypot(self.standard_error, self.data_standard_error)
        return bool(self.data_mean - self.mean > SURELY * error)

    def __str__(self) -> str:
        where = "below" if self.is_below else "not surely below"
        return (
            f"The policy returns {self.mean:.4g} +- {self.standard_error:.2g}, {where} the "
            f"{self.data_mean:.4g} +- {self.data_standard_error:.2g} of its data."
        )

    @property
    def advice(self) -> str:
        """What to do about a policy below its data."""
        return (
            "Train longer, act by samples in place of the likeliest choices, or imitate: "
            'SPINIDQL(recipe="tuned") searches only where its critics confirm each other.'
        )


def compare_with_data(
    mean: float, std: float, n_episodes: int, dataset: ReplayBufferBase
) -> AgainstData:
    """Compares returns of played episodes with those of a dataset's.

    Args:
        mean: of the played episodes' undiscounted returns.
        std: their standard deviation.
        n_episodes: how many were played; one alone has no error, so nothing is sure.
        dataset: whose episodes' returns are compared.
    """
    returns = np.array([float(np.sum(episode.rewards)) for episode in dataset.episodes])
    error = std / np.sqrt(n_episodes) if n_episodes > 1 else np.inf
    data_error = returns.std() / np.sqrt(len(returns))
    return AgainstData(mean, float(error), float(returns.mean()), float(data_error))
