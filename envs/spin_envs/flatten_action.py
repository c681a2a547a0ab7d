"""Environments whose actions are of any nesting, with one `MultiDiscrete` action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from spin_envs.flat_actions import BinsOf, FlatActions

MASK = "action_mask"


class FlattenAction(
    gymnasium.Wrapper[Any, NDArray[np.integer[Any]], Any, Any], RecordConstructorArgs
):
    """Wrapper that gives an environment with any actions a `MultiDiscrete` action space.

        env = FlattenAction(env, bins={"stick": 5})
        env.actions.names  # ["jump", "stick/0", "stick/1"]

    The mask in `info["action_mask"]`, if there is one, becomes `(N, K)`.

    Args:
        env: its actions are of a space that `FlatActions` takes.
        bins: see `FlatActions`.
        log: likewise.
        actions: instead of both, a `FlatActions` of the environment's space, such as a dataset's,
            or its `to_dict()`.

    Attributes:
        actions: the `FlatActions` that converts.

    Raises:
        ValueError: see `FlatActions`; or `actions` is of another space, or not alone.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        bins: BinsOf | None = None,
        log: Sequence[Any] | NDArray[Any] | None = None,
        actions: FlatActions | Mapping[str, Any] | None = None,
    ) -> None:
        if actions is not None and (bins is not None or log is not None):
            raise ValueError("Expected actions= alone: they say how the space is binned.")
        if isinstance(actions, Mapping):
            actions = FlatActions.from_dict(actions)
        actions = FlatActions.made(env.action_space, bins if actions is None else actions, log)
        RecordConstructorArgs.__init__(self, actions=actions.to_dict())
        super().__init__(env)
        self.actions = actions
        self.action_space = actions.flat_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the info's mask is of the slots' choices."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._info(info)

    def step(self, action: NDArray[np.integer[Any]]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps with one choice per slot, `(N,)`; raises InvalidActionError for others."""
        *results, info = self.env.step(self.actions.unflatten(action))
        observation, reward, terminated, truncated = results
        return observation, reward, terminated, truncated, self._info(info)

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        given = info.get(MASK)
        return info if given is None else {**info, MASK: self.actions.mask(given)}
