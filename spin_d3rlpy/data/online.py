"""Replay buffers that are filled by playing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from d3rlpy.dataset import EpisodeBase, FIFOBuffer, ReplayBuffer

from spin_d3rlpy._compat import DiscreteView


def create_replay_buffer(
    env: gymnasium.Env[Any, Any],
    limit: int = 1_000_000,
    episodes: Sequence[EpisodeBase] | None = None,
) -> ReplayBuffer:
    """Returns a d3rlpy replay buffer for an environment with MultiDiscrete actions.

    d3rlpy's own `create_fifo_replay_buffer` refuses such an environment.

    Args:
        env: defines observations and actions.
        limit: largest number of transitions; the oldest are replaced.
        episodes: initial content, e.g. an offline dataset's `episodes`.

    Raises:
        InvalidActionSpaceError: the action space is not MultiDiscrete, MultiBinary or Discrete.
    """
    view: Any = DiscreteView(env)
    buffer = ReplayBuffer(FIFOBuffer(limit), env=view)
    for episode in episodes or ():
        buffer.append_episode(episode)
    return buffer
