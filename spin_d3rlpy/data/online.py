"""Data from playing: replay buffers that grow, and datasets of a function's episodes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from d3rlpy.dataset import EpisodeBase, FIFOBuffer, ReplayBuffer
from numpy.typing import NDArray

from spin_d3rlpy._compat import DiscreteView, keep_whole_episodes
from spin_d3rlpy.data.action_spaces import flat_actions_of, with_flat_actions
from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.buffer.masks import INFO, Bits, is_choice, mask_of_info, pack
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.data.observation_spaces import (
    check_flattens,
    flat_rows,
    observation_layout_of_env,
    split_list,
    with_flat_observations,
)
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError
from spin_d3rlpy.fast import give_back_freed_memory
from spin_d3rlpy.nvec import choices_of, nvec_from_space
from spin_d3rlpy.training.progress import progress_bar, warn_of_interrupt
from spin_envs import FlatActions, ObservationLayout
from spin_envs.action_numbers import ActionNumbers
from spin_envs.flat_actions import BinsOf, check_bins, is_flat


def create_replay_buffer(
    env: gymnasium.Env[Any, Any],
    limit: int = 1_000_000,
    episodes: Sequence[EpisodeBase] | None = None,
) -> ReplayBuffer:
    """Returns a d3rlpy replay buffer for an environment with actions that need no bins.

    d3rlpy's own `create_fifo_replay_buffer` refuses such an environment.

    Args:
        env: defines observations and actions. Observations with images become rows.
        limit: largest number of transitions; the oldest are replaced.
        episodes: initial content, e.g. an offline dataset's `episodes`.

    Raises:
        InvalidActionSpaceError: the action space cannot be converted, or not without bins: then
            wrap the environment in `spin_envs.FlattenAction`.
        ValueError: a limit of less than 2.
    """
    if limit < 2:  # d3rlpy compares the two oldest transitions
        raise ValueError(f"Expected a limit of at least 2 transitions, got {limit}.")
    view: Any = DiscreteView(with_flat_observations(with_flat_actions(env)))
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
    bins: BinsOf | FlatActions | None = None,
) -> DeviceReplayBuffer:
    """Plays episodes by a function, such as a rule of thumb, and returns them as a dataset.

    Args:
        env: its observations are numbers of any shape or images of uint8, alone or in a `Dict` or
            `Tuple`; without images they become vectors as by Gymnasium's `flatten`. Its actions are
            of any space that `spin_envs.FlatActions` takes. Its `unwrapped.layout` becomes the
            dataset's, and so do masks in `info["action_mask"]`.
        choose: maps an observation, as the environment has it, to an action of its space.
        episodes: how many to play.
        seed: of the first episode; later ones count up.
        progress: draw a progress bar.
        with_masks: call `choose(observation, mask)` with the mask `(N, K)` of the state, bool; of a
            `Dict`, `Tuple` or `Box` space with the mask as the environment has it.
        bins: of continuous actions, see `spin_envs.FlatActions`; the log is what is played. Or the
            `flat_actions` of another dataset or of a policy, for the same bins again.

    Ctrl-C ends it early: the whole episodes so far are returned, with a warning.

    Raises:
        KeyboardInterrupt: Ctrl-C in the first episode.
        InvalidActionSpaceError: the action space cannot be converted, or not without bins.
        InvalidObservationError: in the observation space there is what networks cannot take.
        InvalidDatasetError: observations are not finite, or actions are not in the space;
            observations of another shape than the space says, before anything is played;
            an action that its state's mask forbids, or masks of some states only.
        ValueError: `episodes` is less than 1, or bad bins.
    """
    if episodes < 1:
        raise ValueError(f"Expected episodes of at least 1, got {episodes}.")
    actions, layout = _Actions.of(env, bins), observation_layout_of_env(env)
    if layout is None:
        check_flattens(env.observation_space)
    played = []
    with progress_bar("Playing", "episode", progress, total=episodes) as bar:
        try:
            for i in range(episodes):
                name = f"episode {i}"
                played.append(_play(env, choose, seed + i, name, actions, with_masks, layout))
                bar.update()
        except KeyboardInterrupt:
            if not played:
                raise
            warn_of_interrupt(f"{len(played)} of {episodes} episodes")
    flat = actions.learned(played)
    nvec = nvec_from_space(env.action_space if flat is None else flat.flat_space)
    lengths = [len(episode.rewards) for episode in played]
    played.reverse()

    def arrays() -> Iterator[EpisodeArrays]:
        while played:  # an episode's frames are not to be in memory twice
            yield actions.choices(played.pop(), flat, nvec, env.observation_space, layout)
            if layout is not None:
                give_back_freed_memory()

    buffer = DeviceReplayBuffer(stack_episodes(arrays(), lengths, nvec, observation_layout=layout))
    buffer.layout = layout_of(env)
    buffer.flat_actions = flat_actions_of(env) if actions.numbers is None else flat
    return buffer


@dataclasses.dataclass(frozen=True)
class _Played:
    """An episode of T steps."""

    name: str
    observations: list[Any]  # T + 1
    actions: list[NDArray[Any]]  # as `_Actions.row` keeps them
    rewards: list[float]
    masks: list[Any]  # T + 1, as `_Actions.mask` keeps them; None where there is none
    terminated: bool


@dataclasses.dataclass(frozen=True)
class _Actions:
    """Actions and masks of an environment, from what it takes and gives to choices.

    Attributes:
        space: of its actions.
        bins: of continuous ones, made when all are known.
        numbers: what actions are made of until then; None if they are slots of choices anyway.
    """

    space: gymnasium.Space[Any]
    bins: BinsOf | FlatActions | None
    numbers: ActionNumbers | None

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any], bins: BinsOf | FlatActions | None) -> _Actions:
        """Refuses bad spaces and bins before anything is played."""
        space = env.action_space
        if bins is None and is_flat(space):
            nvec_from_space(space)
            return cls(space, None, None)
        try:
            check_bins(space, bins)
        except ValueError as error:
            if bins is not None:
                raise
            raise InvalidActionSpaceError(f"{error} Pass bins= to collect.") from error
        return cls(space, bins, ActionNumbers(space))

    def row(self, action: Any) -> NDArray[Any]:
        """Returns what is kept of an action."""
        if self.numbers is None:
            return choices_of(self.space, action)
        return np.asarray(self.numbers.of_actions([action])[0])

    def mask(self, info: Mapping[str, Any]) -> Any:
        """Returns what is kept of a mask, which an environment may change later."""
        if self.numbers is None:
            return mask_of_info(info, nvec_from_space(self.space))
        return copy.deepcopy(info.get(INFO))

    def learned(self, played: Sequence[_Played]) -> FlatActions | None:
        """Returns how actions become choices, by all that were made."""
        if self.numbers is None:
            return None
        log = np.stack([action for episode in played for action in episode.actions])
        return FlatActions.made(self.space, self.bins, log)

    def choices(
        self,
        episode: _Played,
        flat: FlatActions | None,
        nvec: Sequence[int],
        observation_space: gymnasium.Space[Any],
        layout: ObservationLayout | None,
    ) -> EpisodeArrays:
        """Returns an episode with choices."""
        actions, masks = np.asarray(episode.actions), episode.masks
        if flat is not None:
            actions = flat.choices(actions)
            masks = [None if mask is None else flat.mask(mask) for mask in masks]
        observations: Any
        images: Any = None
        if layout is None:
            observations = flat_rows(observation_space, episode.observations, episode.name)
        else:
            observations, images = split_list(layout, episode.observations, episode.name)
        return EpisodeArrays(
            name=episode.name,
            observations=observations,
            images=images,
            actions=actions,
            rewards=np.asarray(episode.rewards),
            terminated=episode.terminated,
            masks=_packed(masks, nvec, episode.name),
        )


def _play(
    env: gymnasium.Env[Any, Any],
    choose: Callable[..., Any],
    seed: int,
    name: str,
    actions: _Actions,
    with_masks: bool,
    layout: ObservationLayout | None,
) -> _Played:
    observation, info = env.reset(seed=seed)
    # Another shape than the space says is found before anything is played.
    if layout is not None:
        split_list(layout, [observation], name)
    else:
        flat_rows(env.observation_space, [observation], name)
    played = _Played(name, [observation], [], [], [actions.mask(info)], False)
    over = terminated = False
    while not over:
        mask = played.masks[-1]
        if with_masks and mask is None:
            raise InvalidDatasetError(
                f"Expected info['action_mask'] of every state, step {len(played.actions)} of "
                f"{name} has none. Pass with_masks=False for an environment without masks."
            )
        action = choose(observation, mask) if with_masks else choose(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        played.observations.append(observation)
        played.actions.append(actions.row(action))
        played.rewards.append(float(reward))
        played.masks.append(actions.mask(info))
        over = terminated or truncated
    return dataclasses.replace(played, terminated=bool(terminated))


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
