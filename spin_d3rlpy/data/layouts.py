"""Layouts of actions in a dataset's metadata and of environments."""

from __future__ import annotations

from collections.abc import Sequence

from minari import MinariDataset

from spin_d3rlpy.errors import InvalidDatasetError
from spin_envs import ActionLayout as ActionLayout

KEY = "action_layout"  # in Minari's metadata


def layout_of(env: object) -> ActionLayout | None:
    """Returns what an environment's `unwrapped.layout` says of its actions, if it says anything."""
    layout = getattr(getattr(env, "unwrapped", env), "layout", None)
    return layout if isinstance(layout, ActionLayout) else None


def read_layout(
    dataset: MinariDataset, observation_size: int, nvec: Sequence[int]
) -> ActionLayout | None:
    """Returns the layout in a dataset's metadata; InvalidDatasetError if it does not fit it."""
    content = dataset.storage.metadata.get(KEY)
    if content is None:
        return None
    try:
        layout = ActionLayout.from_dict(content)
        layout.check(observation_size, nvec)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidDatasetError(
            f"The layout of actions in the metadata of {dataset.id} does not fit it. {error}"
        ) from error
    return layout
