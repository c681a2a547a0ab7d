"""Which transitions a batch is made of."""

from __future__ import annotations

import dataclasses

import torch
from d3rlpy.logging import LOG

from spin_d3rlpy.data.buffer.storage import StoredEpisodes
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights, persistence


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """Draws transitions with replacement, by torch's global random state.

    Attributes:
        episode_starts: `(episodes + 1,)`, of the episodes.
        n_transitions: of all of them.
        weights: `(episodes,)` of a transition of each, not normalized; None draws all alike.
        weighs_critics: whether critics' batches are drawn by weights, too.
        imitation_rows: rows of the policy's batch; None: as many as the critics'.
    """

    episode_starts: torch.Tensor
    n_transitions: int
    weights: torch.Tensor | None = None
    weighs_critics: bool = False
    imitation_rows: int | None = None
    # (episodes,) cumulative share of all draws by weights.
    _shares: torch.Tensor | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        shares = None
        if self.weights is not None:
            drawn = (self.weights * self.episode_starts.diff()).cumsum(0)
            shares = drawn / drawn[-1]
        object.__setattr__(self, "_shares", shares)

    @classmethod
    def of(
        cls,
        stored: StoredEpisodes,
        weights: torch.Tensor | None = None,
        weighs_critics: bool = False,
        imitation_rows: int | None = None,
    ) -> Sampler:
        """Returns a sampler of these episodes."""
        n = len(stored.rewards)
        return cls(stored.episode_starts, n, weights, weighs_critics, imitation_rows)

    def draw(self, n: int, weighted: bool = True) -> torch.Tensor:
        """Returns indices of transitions `(n,)`, by trajectory weights if `weighted`."""
        starts = self.episode_starts
        if self._shares is None or not weighted:
            return torch.randint(self.n_transitions, (n,), device=starts.device)
        u = torch.rand(n, 2, dtype=torch.float64, device=starts.device)
        episode = torch.searchsorted(self._shares, u[:, 0].contiguous(), right=True)
        start, end = starts[episode], starts[episode + 1]
        return start + (u[:, 1] * (end - start)).long()

    def separate_imitation_rows(self, n: int) -> int | None:
        """Returns the rows of the policy's batch if it is not the critics' (of `n` rows)."""
        rows = self.imitation_rows or n
        return None if rows == n and (self.weights is None or self.weighs_critics) else rows


def episode_weights(stored: StoredEpisodes, weights: TrajectoryWeights) -> torch.Tensor | None:
    """Returns how much each episode counts, `(episodes,)`; None: by luck, so all alike."""
    is_measured = weights.least_persistence > -1.0
    if is_measured and _has_single_steps(stored):
        LOG.info("All trajectories count alike: of one step each, luck cannot be told from choice")
        return None
    if is_measured:
        measured = persistence_of(stored)
        if measured < weights.least_persistence:  # not so if it cannot be told
            LOG.info(
                "All trajectories count alike: their returns differ by luck",
                persistence=round(measured, 2),
            )
            return None
    return weights.compute(stored.returns(), _first_observations(stored))


def persistence_of(stored: StoredEpisodes) -> float:
    """Returns `weights.persistence` of logged episodes; NaN if all have one step."""
    if _has_single_steps(stored):
        return float("nan")
    return persistence(stored.halves(), _first_observations(stored))


def _has_single_steps(stored: StoredEpisodes) -> bool:
    return bool((stored.episode_starts.diff() == 1).all())


def _first_observations(stored: StoredEpisodes) -> torch.Tensor:
    """Returns the numbers that episodes start with, `(episodes, obs)`, without images."""
    rows = stored.observation_index.index_select(0, stored.episode_starts[:-1])
    if stored.images is None:
        return stored.observations_at(rows)
    # no regression on thousands of pixels
    return stored.observations[rows.to(stored.observations.device)].to(stored.device)
