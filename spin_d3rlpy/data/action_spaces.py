"""Environments and files whose actions are of another space than slots of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import MultiDiscrete, Space

from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs import FlatActions, FlattenAction
from spin_envs.flat_actions import is_flat

KEY = "flat_actions"  # in Minari's metadata and in files of policies


def with_flat_actions(
    env: gymnasium.Env[Any, Any], kept: FlatActions | None = None
) -> gymnasium.Env[Any, Any]:
    """Returns an environment with slots of choices as actions: itself, or in a `FlattenAction`.

    Args:
        env: any environment.
        kept: how a dataset or policy reads its actions; without it nothing may need bins.

    Raises:
        InvalidActionSpaceError: its actions cannot be converted, or are others than those.
    """
    if is_flat(env.action_space):
        return env
    try:
        return FlattenAction(env, actions=kept or FlatActions(env.action_space))
    except ValueError as error:
        raise InvalidActionSpaceError(
            f"The environment's actions are no slots of choices. {error} Wrap it in "
            "spin_envs.FlattenAction, which takes bins=, or use data that were read with bins."
        ) from error


def flat_actions_of(env: gymnasium.Env[Any, Any]) -> FlatActions | None:
    """Returns how an environment's choices become what it takes, its wrappers included.

    None where both are the same, or nothing is known.
    """
    wrapped = env
    while isinstance(wrapped, gymnasium.Wrapper):
        if isinstance(wrapped, FlattenAction):
            return wrapped.actions
        wrapped = wrapped.env
    return flat_actions_of_space(env.action_space)


def flat_actions_of_space(space: Space[Any]) -> FlatActions | None:
    """Returns how choices become actions of a space of slots; None where they are the same."""
    if not is_flat(space) or space == MultiDiscrete(nvec_from_space(space)):
        return None
    return FlatActions(space)


def read_flat_actions(content: object, nvec: Sequence[int]) -> FlatActions | None:
    """Returns what is kept with a dataset or policy, if anything.

    Raises:
        InvalidDatasetError: it is damaged, or of another number of choices.
    """
    if content is None:
        return None
    try:
        if not isinstance(content, Mapping):
            raise ValueError(f"Expected its fields, got {content!r:.100}.")
        actions = FlatActions.from_dict(content)
    except ValueError as error:
        raise InvalidDatasetError(f"The kept space of actions is damaged. {error}") from error
    if actions.nvec.tolist() != list(nvec):
        raise InvalidDatasetError(
            f"The kept space of actions has nvec={actions.nvec.tolist()}, expected {list(nvec)}."
        )
    return actions
