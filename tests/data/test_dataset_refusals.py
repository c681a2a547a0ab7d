"""Datasets that cannot be used: each refusal says where the fault is and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import Episode, InfiniteBuffer, MixedReplayBuffer, ReplayBuffer
from gymnasium.spaces import Box, MultiDiscrete

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError

NVEC = [3, 5]
Make = Callable[..., Any]


def _episode(actions: Any, observations: Any = None, rewards: Any = None) -> Any:
    length = len(actions)
    observations = np.zeros((length, 2), np.float32) if observations is None else observations
    rewards = np.zeros((length, 1), np.float32) if rewards is None else rewards
    return ReplayBuffer(
        InfiniteBuffer(),
        episodes=[Episode(observations, actions, rewards, True)],
        action_space=ActionSpace.DISCRETE,
        action_size=5,
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("array", ["observations", "rewards"])
def test_entries_that_are_not_finite_name_episode_and_step(
    array: str, value: float, make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    broken = getattr(episodes[2], array).astype(np.float64)
    broken[4] = value
    setattr(episodes[2], array, broken)
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    with pytest.raises(InvalidDatasetError, match=rf"{array[:-1]} at step 4 of episode 2"):
        DeviceReplayBuffer.from_minari(dataset)


def test_an_infinite_last_next_observation_is_noticed(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    episodes[1].observations[-1] = np.nan
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    with pytest.raises(InvalidDatasetError, match="step 3 of episode 1"):
        DeviceReplayBuffer.from_minari(dataset)


@pytest.mark.parametrize("choice", [-1, 5, 258])
def test_choices_out_of_range_name_episode_step_and_slot(
    choice: int, make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    episodes[1].actions[2, 1] = choice
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    match = rf"Slot 1 at step 2 of episode 1 is {choice}, expected .* 0 to 4"
    with pytest.raises(InvalidDatasetError, match=match):
        DeviceReplayBuffer.from_minari(dataset)


def test_continuous_actions_are_refused_with_advice(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    for e in episodes:
        e.actions = e.actions.astype(np.float32)
    dataset = make_minari(Box(-1, 1, (2,), np.float32), episodes)
    with pytest.raises(InvalidDatasetError, match=r"bins=7.*others/things-v0.*Box"):
        DeviceReplayBuffer.from_minari(dataset)


def test_bins_for_actions_that_are_discrete_are_refused(
    make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    with pytest.raises(
        InvalidDatasetError, match=r"none for others.*others/things-v0 has MultiDiscrete"
    ):
        DeviceReplayBuffer.from_minari(dataset, bins=3)


def test_continuous_actions_that_are_not_finite_are_refused(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    for e in episodes:
        e.actions = e.actions.astype(np.float32)
    episodes[1].actions[2, 1] = np.nan
    dataset = make_minari(Box(-1, 1, (2,), np.float32), episodes)
    with pytest.raises(InvalidDatasetError, match=r"action at step 2 of episode 1 is not finite"):
        DeviceReplayBuffer.from_minari(dataset, bins=3)


def test_float_actions_in_a_discrete_space_are_refused(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    for e in episodes:
        e.actions = e.actions.astype(np.float32)
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    with pytest.raises(InvalidDatasetError, match=r"episode 0 has dtype float32.*Discretize"):
        DeviceReplayBuffer.from_minari(dataset)


def test_continuous_actions_of_a_d3rlpy_buffer_are_refused_with_advice() -> None:
    actions = np.array([[0.0, 1.0], [2.0, 0.37]], np.float32)
    match = r"Slot 1 at step 1 of episode 0 is 0.37.*Discretize"
    with pytest.raises(InvalidDatasetError, match=match):
        DeviceReplayBuffer.from_replay_buffer(_episode(actions), NVEC)


@pytest.mark.parametrize("value", [np.nan, 3.0])
def test_bad_float_choices_of_a_d3rlpy_buffer_are_refused(value: float) -> None:
    actions = np.array([[0.0, 1.0], [value, 4.0]], np.float32)
    with pytest.raises(InvalidDatasetError, match=r"(?i)slot 0 at step 1 of episode 0"):
        DeviceReplayBuffer.from_replay_buffer(_episode(actions), NVEC)


def test_another_number_of_slots_is_a_mismatch() -> None:
    with pytest.raises(NvecMismatchError, match=r"Expected 2.*has 3"):
        DeviceReplayBuffer.from_replay_buffer(_episode(np.zeros((4, 3), np.int64)), NVEC)


def test_images_and_tuples_of_a_d3rlpy_buffer_are_refused() -> None:
    actions = np.zeros((3, 2), np.int64)
    images = _episode(actions, np.zeros((3, 1, 4, 4), np.float32))
    with pytest.raises(InvalidDatasetError, match=r"shape \(4, 1, 4, 4\).*Flatten"):
        DeviceReplayBuffer.from_replay_buffer(images, NVEC)
    pairs = _episode(actions, (np.zeros((3, 2), np.float32), np.zeros((3, 4), np.float32)))
    with pytest.raises(InvalidDatasetError, match="episode 0 has a tuple"):
        DeviceReplayBuffer.from_replay_buffer(pairs, NVEC)


def test_arrays_of_other_lengths_are_refused(make_minari: Make, foreign_episodes: Make) -> None:
    episodes = foreign_episodes(NVEC)
    episodes[2].observations = episodes[2].observations[:-1]  # T observations against T actions
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    with pytest.raises(InvalidDatasetError, match=r"episode 2 .*\(8, 2\).*found shape \(7, 2\)"):
        DeviceReplayBuffer.from_minari(dataset)


def test_episodes_with_other_features_are_refused(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    episodes[1].observations = np.zeros((4, 3), np.float32)
    dataset = make_minari(MultiDiscrete(NVEC), episodes)
    with pytest.raises(InvalidDatasetError, match=r"episode 1 .*\(4, 2\).*found shape \(4, 3\)"):
        DeviceReplayBuffer.from_minari(dataset)
    arrays = [
        EpisodeArrays(f"episode {i}", e.observations, e.actions, e.rewards, False)
        for i, e in enumerate(episodes)
    ]
    with pytest.raises(InvalidDatasetError, match="episode 1 have 3 features"):
        stack_episodes(arrays, [len(e.rewards) for e in arrays], NVEC)


def test_several_rewards_a_step_are_refused() -> None:
    rewards = np.zeros((3, 2), np.float32)
    buffer = _episode(np.zeros((3, 2), np.int64), rewards=rewards)
    with pytest.raises(InvalidDatasetError, match="T rewards"):
        DeviceReplayBuffer.from_replay_buffer(buffer, NVEC)


def test_datasets_without_transitions_are_refused(make_minari: Make) -> None:
    with pytest.raises(InvalidDatasetError, match="no transitions"):
        DeviceReplayBuffer.from_minari(make_minari(MultiDiscrete(NVEC), []))
    one_step = ReplayBuffer(
        InfiniteBuffer(),
        episodes=[
            Episode(
                np.zeros((1, 2), np.float32),
                np.zeros((1, 2), int),
                np.zeros((1, 1), np.float32),
                False,
            )
        ],
    )
    with pytest.raises(InvalidDatasetError, match="no transitions"):
        DeviceReplayBuffer.from_replay_buffer(one_step, NVEC)


def test_mixed_buffers_are_refused() -> None:
    part = _episode(np.zeros((3, 2), np.int64))
    with pytest.raises(InvalidDatasetError, match="pass one of its buffers"):
        DeviceReplayBuffer.from_replay_buffer(MixedReplayBuffer(part, part, 0.5), NVEC)
