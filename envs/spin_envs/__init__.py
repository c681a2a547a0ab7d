"""MultiDiscrete environments, registered in Gymnasium when this package is imported."""

from spin_envs.action_bins import Bins
from spin_envs.action_grid import ActionGrid
from spin_envs.discretized import DiscretizeAction
from spin_envs.errors import (
    EnvironmentCopyError,
    InvalidActionError,
    MissingDependencyError,
    ObservationShapeError,
    UnknownTaskError,
)
from spin_envs.flat_actions import FlatActions
from spin_envs.flatten_action import FlattenAction
from spin_envs.flatten_images import FlattenImages
from spin_envs.joint_action import JointAction, joint_action
from spin_envs.layout import ActionLayout
from spin_envs.observation_layout import ObservationLayout
from spin_envs.scores import normalized_score, reference_scores, register_reference_scores
from spin_envs.tasks import register_all
from spin_envs.vector import make_batch

__all__ = [
    "ActionGrid",
    "ActionLayout",
    "Bins",
    "DiscretizeAction",
    "EnvironmentCopyError",
    "FlatActions",
    "FlattenAction",
    "FlattenImages",
    "InvalidActionError",
    "JointAction",
    "MissingDependencyError",
    "ObservationLayout",
    "ObservationShapeError",
    "UnknownTaskError",
    "joint_action",
    "make_batch",
    "normalized_score",
    "reference_scores",
    "register_reference_scores",
]

register_all()
