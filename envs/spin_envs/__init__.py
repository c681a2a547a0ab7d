"""MultiDiscrete control environments, registered in Gymnasium when this package is imported."""

from spin_envs.action_grid import ActionGrid
from spin_envs.errors import InvalidActionError, MissingDependencyError, UnknownTaskError
from spin_envs.registration import register_all
from spin_envs.scores import normalized_score, reference_scores

__all__ = [
    "ActionGrid",
    "InvalidActionError",
    "MissingDependencyError",
    "UnknownTaskError",
    "normalized_score",
    "reference_scores",
]

register_all()
