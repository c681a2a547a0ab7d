"""Data from playing: replay buffers that grow, and datasets of a function's episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from d3rlpy.dataset import EpisodeBase, FIFOBuffer, ReplayBuffer
from numpy.typing import NDArray

from spin_d3rlpy._compat import DiscreteView, keep_whole_episodes
from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.buffer.masks import Bits, is_choice, mask_of_info, pack
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.nvec import choices_of, nvec_from_space
from spin_d3rlpy.training.progress import progress_bar, warn_of_interrupt


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
        ValueError: a limit of less than 2.
    """
    if limit < 2:  # d3rlpy compares the two oldest transitions
        raise ValueError(f"Expected a limit of at least 2 transitions, got {limit}.")
    view: Any = DiscreteView(env)
    buffer = ReplayBuffer(FIFOBuffer(limit), env=view)
    keep_whole_episodes(buffer)
    for episode in episodes or ():
        buffer.append_episode(episode)
    return buffer


def collect(
    env: gymnasium.Env[Any, Any],
    choose: Callable[..., Any],
    episodes: int = 100,
    seed: int = 0,
    progress: bool = True,
    with_masks: bool = False,
) -> DeviceReplayBuffer:
    """Plays episodes by a function, such as a rule of thumb, and returns them as a dataset.

    Args:
        env: its observations are flat, its actions MultiDiscrete, MultiBinary or Discrete; its
            `unwrapped.layout` becomes the dataset's, and so do masks in `info["action_mask"]`.
        choose: maps an observation `(obs,)` to an action of the environment's space.
        episodes: how many to play.
        seed: of the first episode; later ones count up.
        progress: draw a progress bar.
        with_masks: call `choose(observation, mask)` with the mask `(N, K)` of the state, bool.

    Ctrl-C ends it early: the whole episodes so far are returned, with a warning.

    Raises:
        KeyboardInterrupt: Ctrl-C in the first episode.
        InvalidActionSpaceError: the action space is another one.
        InvalidDatasetError: observations are not flat, not finite, or actions are not in the space;
            an action that its state's mask forbids, or masks of some states only.
        ValueError: `episodes` is less than 1.
    """
    if episodes < 1:
        raise ValueError(f"Expected episodes of at least 1, got {episodes}.")
    nvec = nvec_from_space(env.action_space)
    played = []
    with progress_bar("Playing", "episode", progress, total=episodes) as bar:
        try:
            for i in range(episodes):
                played.append(_play(env, choose, seed + i, f"episode {i}", nvec, with_masks))
                bar.update()
        except KeyboardInterrupt:
            if not played:
                raise
            warn_of_interrupt(f"{len(played)} of {episodes} episodes")
    lengths = [len(episode.rewards) for episode in played]
    buffer = DeviceReplayBuffer(stack_episodes(iter(played), lengths, nvec))
    buffer.layout = layout_of(env)
    return buffer


def _play(
    env: gymnasium.Env[Any, Any],
    choose: Callable[..., Any],
    seed: int,
    name: str,
    nvec: Sequence[int],
    with_masks: bool,
) -> EpisodeArrays:
    observation, info = env.reset(seed=seed)
    observations = [observation]
    actions: list[Any] = []
    rewards: list[float] = []
    masks = [mask_of_info(info, nvec)]
    terminated = truncated = False
    while not (terminated or truncated):
        if with_masks and masks[-1] is None:
            raise InvalidDatasetError(
                f"Expected info['action_mask'] of every state, step {len(actions)} of {name} has "
                "none. Pass with_masks=False for an environment without masks."
            )
        action = choose(observation, masks[-1]) if with_masks else choose(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        actions.append(choices_of(env.action_space, action))
        rewards.append(float(reward))
        masks.append(mask_of_info(info, nvec))
    return EpisodeArrays(
        name=name,
        observations=np.asarray(observations, np.float32),
        actions=np.asarray(actions),
        rewards=np.asarray(rewards),
        terminated=bool(terminated),
        masks=_packed(masks, nvec, name),
    )


def _packed(
    masks: Sequence[NDArray[np.bool_] | None], nvec: Sequence[int], name: str
) -> Bits | None:
    """Returns the masks of an episode's states as bits; None if no state has one."""
    if all(mask is None for mask in masks[:-1]):
        return None
    given = list(masks)
    if given[-1] is None:  # nothing is chosen in the last state
        given[-1] = is_choice(nvec)
    missing = [step for step, mask in enumerate(given) if mask is None]
    if missing:
        raise InvalidDatasetError(
            f"Expected info['action_mask'] of every state or of none, step {missing[0]} of {name} "
            "has none."
        )
    return pack(np.stack([mask for mask in given if mask is not None]), nvec)
