from __future__ import annotations

import enum
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from spin_envs.rollout import EpisodeRecord, rollout
from spin_envs.vector import make_batch


class CountdownEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.integer[Any]]]):
    """Lasts `2 + seed % 5` steps, truncated for odd seeds; returns the array that it reuses.

    An unseeded episode, which autoreset starts, is of seed 0 and pays nonsense.
    """

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([7, 7, 7])

    def __init__(self) -> None:
        self._state = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._nonsense = seed is None
        seed = seed or 0
        self._seed, self._left = seed, 2 + seed % 5
        self._state[:] = seed, 0
        return self._state, {}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self._left > 0, "stepped past the episode's end"
        self._left -= 1
        self._state[1] += 1
        over = self._left == 0
        reward = 1e6 if self._nonsense else float(action.sum())
        return self._state, reward, over and self._seed % 2 == 0, over, {"seed": self._seed}


SEEDS = [9, 2, 4, 3, 8, 0, 1]
LENGTHS = [2 + seed % 5 for seed in SEEDS]


class Policy:
    """Acts on what it is asked about, through one array that it reuses, and notes the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._out = np.zeros((len(SEEDS), 3), np.int64)

    def __call__(
        self, observations: NDArray[np.float32], indices: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        self.batches.append(indices.tolist())
        out = self._out[: len(indices)]
        out[:] = np.stack([observations[:, 0] % 7, observations[:, 1], indices], 1)
        return out


def play(n_envs: int, **kwargs: Any) -> tuple[list[EpisodeRecord], Policy]:
    envs, policy = SyncVectorEnv([CountdownEnv] * n_envs, copy=False), Policy()
    return list(rollout(envs, policy, SEEDS, **kwargs)), policy


@pytest.mark.parametrize("n_envs", [1, 2, 3, 7, 11])
def test_episodes_come_in_the_order_of_their_seeds_whatever_the_number_of_envs(
    n_envs: int,
) -> None:
    episodes, _ = play(n_envs)
    assert [e.seed for e in episodes] == SEEDS
    for index, (episode, length) in enumerate(zip(episodes, LENGTHS, strict=True)):
        t = np.arange(length)
        expected = np.stack([np.full(length, episode.seed % 7), t, np.full(length, index)], 1)
        np.testing.assert_array_equal(episode.actions, expected)
        np.testing.assert_array_equal(episode.rewards, expected.sum(1))
        np.testing.assert_array_equal(episode.observations[:, 1], np.arange(length + 1))
        np.testing.assert_array_equal(episode.observations[:, 0], episode.seed)


def test_terminated_tells_the_task_from_the_time_limit() -> None:
    episodes, _ = play(3)
    assert [e.terminated for e in episodes] == [seed % 2 == 0 for seed in SEEDS]


def test_policy_is_asked_once_for_all_running_episodes_and_finished_ones_drop_out() -> None:
    _, policy = play(7)
    assert policy.batches[0] == [0, 1, 2, 3, 4, 5, 6]
    for t, batch in enumerate(policy.batches):
        assert batch == [i for i, length in enumerate(LENGTHS) if length > t]


def test_episodes_beyond_the_number_of_envs_are_played_in_batches() -> None:
    _, policy = play(3)
    first_of = [batch[0] // 3 for batch in policy.batches]
    assert first_of == sorted(first_of)
    assert [first_of.count(i) for i in range(3)] == [max(LENGTHS[i : i + 3]) for i in (0, 3, 6)]
    assert policy.batches[-1] == [6]


def test_steps_are_reported_as_they_are_made() -> None:
    steps: list[int] = []
    play(3, on_step=steps.append)
    assert sum(steps) == sum(LENGTHS)
    assert steps[0] == 3


def test_infos_come_after_each_step_with_the_rows_of_running_episodes() -> None:
    seeds: list[list[int]] = []

    def note(infos: dict[str, Any], running: NDArray[np.int64]) -> None:
        seeds.append(infos["seed"][running].tolist())

    _, policy = play(3, on_infos=note)
    assert seeds == [[SEEDS[index] for index in batch] for batch in policy.batches]


def test_without_recording_rewards_are_the_same() -> None:
    recorded, _ = play(3)
    episodes, _ = play(3, record=False)
    for one, other in zip(recorded, episodes, strict=True):
        np.testing.assert_array_equal(other.rewards, one.rewards)
        np.testing.assert_array_equal(other.observations, one.observations[:1])
        assert len(other.actions) == 0


def test_an_episode_is_yielded_as_soon_as_it_and_those_before_it_are_over() -> None:
    policy = Policy()
    next(iter(rollout(SyncVectorEnv([CountdownEnv]), policy, SEEDS)))
    assert len(policy.batches) == LENGTHS[0]


def test_real_episodes_do_not_depend_on_the_number_of_envs() -> None:
    def act(observations: NDArray[np.float32], _: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.repeat((observations[:, :1] > 0).astype(np.int64) * 2, 2, axis=1)

    def returns(n_envs: int) -> list[float]:
        envs = make_batch("spin/point_mass-easy-v0", n_envs)
        return [e.rewards.sum() for e in rollout(envs, act, [5, 6, 7])]

    assert returns(1) == returns(3)


def test_the_wrong_number_of_actions_is_an_error() -> None:
    envs = SyncVectorEnv([CountdownEnv])
    with pytest.raises(ValueError, match="Expected 1 actions, one per observation, got 2"):
        next(rollout(envs, lambda o, _: np.zeros((2, 3), np.int64), SEEDS))


def test_a_vector_environment_that_resets_in_the_same_step_is_refused() -> None:
    class Mode(enum.Enum):  # as Gymnasium has it from 1.1 on
        SAME_STEP = "SameStep"

    envs = SyncVectorEnv([CountdownEnv])
    envs.metadata = {"autoreset_mode": Mode.SAME_STEP}
    with pytest.raises(ValueError, match="next-step autoreset, got"):
        next(rollout(envs, Policy(), SEEDS))
