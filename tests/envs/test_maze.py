from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from spin_envs import InvalidActionError
from spin_envs.maze import GOAL, START, WALLS, MazeEnv, actuator_directions
from tests.measure.maze_random import random_returns
from tests.subprocesses import run_python

UNIT = 0.045


class FixedNoise:
    """Stands in for the random numbers: sub-move k draws `rows[k]` = (chance, x, y)."""

    def __init__(self, rows: list[tuple[float, float, float]]) -> None:
        self._rows = np.array(rows)

    def random(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        assert shape == self._rows.shape
        return self._rows


CALM = [(0.1, 0.9, 0.9)] * 4  # a chance of exactly 0.1 is no noise


def maze(
    at: tuple[float, float] = START, noise: list[tuple[float, float, float]] | None = None
) -> MazeEnv:
    """Four actuators: right, up, left, down. Alone, each pushes with strength 1 / sqrt(2)."""
    env = MazeEnv(actuators=4)
    env.reset(seed=0)
    env._position = at
    env.np_random = FixedNoise(noise or CALM)  # type: ignore[assignment]
    return env


RIGHT, UP, LEFT, DOWN = np.eye(4, dtype=np.int64)
STRIDE = UNIT / np.sqrt(2)


def test_spaces_start_and_registration() -> None:
    env = gymnasium.make("spin/maze-v0", actuators=7)
    assert env.action_space == MultiDiscrete([2] * 7)
    assert env.observation_space == Box(0.0, 1.0, (2,), np.float32)
    observation, info = env.reset(seed=0)
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation, np.array([0.25, 0.10], np.float32))
    assert info == {}
    assert env.spec is not None
    assert env.spec.max_episode_steps == 150


@pytest.mark.parametrize("actuators", [2, 3, 20])
def test_passes_gymnasiums_checker_without_a_warning(actuators: int) -> None:
    env = gymnasium.make("spin/maze-v0", actuators=actuators, render_mode="rgb_array")
    check_env(env.unwrapped)


def test_geometry_is_the_benchmarks() -> None:
    assert GOAL == (0.25, 0.30, 0.45, 0.50)
    assert WALLS == ((0.0, 0.50, 0.25, 0.30), (0.50, 0.55, 0.25, 0.80))


def test_directions_are_rounded_to_three_decimals_before_they_are_scaled() -> None:
    # Directly: (1, 0), (-0.5, 0.866), (-0.5, -0.866); the longest sums are (0.5, +-0.866) and
    # (-1, 0), and 1.
    expected = np.array([[1, 0], [-0.5, 0.866], [-0.5, -0.866]])
    np.testing.assert_allclose(actuator_directions(3), expected, rtol=1e-12)
    assert np.linalg.norm(actuator_directions(3)[1]) != pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(actuator_directions(4)[0], [1 / np.sqrt(2), 0])


@pytest.mark.parametrize("actuators", [2, 5, 12])
def test_the_strongest_joint_action_has_length_one(actuators: int) -> None:
    on = np.array(np.meshgrid(*[[0, 1]] * actuators)).reshape(actuators, -1).T
    lengths = np.linalg.norm(on @ actuator_directions(actuators), axis=1)
    assert lengths.max() == pytest.approx(1.0, abs=1e-12)


def test_a_step_is_four_sub_moves_of_the_sum_of_what_is_on() -> None:
    observation, reward, terminated, truncated, info = maze((0.1, 0.05)).step(RIGHT + UP)
    np.testing.assert_allclose(observation, [0.1 + 4 * STRIDE, 0.05 + 4 * STRIDE], atol=1e-7)
    assert (reward, terminated, truncated, info) == (-0.05, False, False, {})
    observation, *_ = maze((0.1, 0.05)).step(RIGHT + LEFT)  # they cancel out
    np.testing.assert_allclose(observation, [0.1, 0.05], atol=1e-7)


def test_noise_replaces_a_sub_move_and_points_up_and_right() -> None:
    noise = [CALM[0], (0.099, 0.3, 0.7), CALM[0], (0.0, 1.0, 0.0)]
    observation, *_ = maze((0.5, 0.1), noise).step(LEFT)
    x = 0.5 - 2 * STRIDE + (0.3 + 1.0) / 1.415 * UNIT
    np.testing.assert_allclose(observation, [x, 0.1 + 0.7 / 1.415 * UNIT], atol=1e-7)


def test_noise_is_drawn_uniformly_for_a_tenth_of_the_sub_moves() -> None:
    env = MazeEnv(4)
    still, moves = np.zeros(4, np.int64), []
    for seed in range(1500):
        env.reset(seed=seed)
        env._position = (0.8, 0.5)
        env.step(still)
        moves += [np.subtract(b, a) for a, b in zip(env._path[1:], env._path[2:], strict=False)]
    moves_array = np.array(moves) * 1.415 / UNIT
    noise = moves_array[moves_array.any(axis=1)]
    assert len(noise) / len(moves) == pytest.approx(0.1, abs=0.015)
    assert noise.min() >= 0
    assert noise.max() <= 1
    np.testing.assert_allclose(noise.mean(0), 0.5, atol=0.05)
    np.testing.assert_allclose(noise.std(0), 1 / np.sqrt(12), atol=0.03)


@pytest.mark.parametrize(
    ("start", "action", "moves"),
    [
        ((0.25, 0.25 - 2.5 * STRIDE), UP, 2),  # the lower wall
        ((0.50 - 1.5 * STRIDE, 0.5), RIGHT, 1),  # the right wall, from inside
        ((0.55 + 3.5 * STRIDE, 0.79), LEFT, 3),  # and from outside
        ((1 - 0.5 * STRIDE, 0.5), RIGHT, 0),  # the square's edges
        ((0.02, 0.1), LEFT, 0),
        ((0.7, 0.04), DOWN, 1),
        ((0.7, 0.99), UP, 0),
    ],
)
def test_a_sub_move_into_a_wall_or_out_of_the_square_is_not_made_and_ends_the_step(
    start: tuple[float, float], action: NDArray[np.int64], moves: int
) -> None:
    # Noise would continue from there if the step continued.
    noise = [*CALM[:moves], CALM[0], *[(0.0, 0.5, 0.5)] * 4][:4]
    env = maze(start, noise)
    observation, reward, *_ = env.step(action)
    direction = (np.eye(2).repeat(1, 0).tolist() + (-np.eye(2)).tolist())[int(action.argmax())]
    expected = np.array(start) + moves * STRIDE * np.array(direction)
    np.testing.assert_allclose(observation, expected, atol=1e-7)
    assert reward == -0.05


def test_past_the_end_of_the_right_wall_the_way_is_free() -> None:
    observation, *_ = maze((0.55 + 2 * STRIDE, 0.801)).step(LEFT)
    np.testing.assert_allclose(observation, [0.55 - 2 * STRIDE, 0.801], atol=1e-7)


def test_the_goal_pays_once_and_terminates() -> None:
    env = maze((0.30 + 1.5 * STRIDE, 0.47))
    observation, reward, terminated, truncated, _ = env.step(LEFT)
    assert reward == 100.0 - 0.05
    assert terminated
    assert not truncated
    np.testing.assert_allclose(observation, [0.30 - 0.5 * STRIDE, 0.47], atol=1e-7)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(LEFT)


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_episode_without_the_goal_returns_minus_7_45_in_150_steps(wrapped: bool) -> None:
    env = gymnasium.make("spin/maze-v0", actuators=4)
    env = env if wrapped else env.unwrapped
    observation, _ = env.reset(seed=0)
    total, steps, truncated = 0.0, 0, False
    while not truncated:
        before = observation
        observation, reward, terminated, truncated, _ = env.step(LEFT)
        assert not terminated
        total += float(reward)
        steps += 1
    assert steps == 150
    assert total == pytest.approx(-7.45, abs=1e-12)
    assert reward == 0.0
    np.testing.assert_array_equal(observation, before)


def test_the_last_step_does_not_reach_the_goal_either() -> None:
    env = maze((0.30 + 0.5 * STRIDE, 0.47))
    env._elapsed = 149
    observation, reward, terminated, truncated, _ = env.step(LEFT)
    assert (reward, terminated, truncated) == (0.0, False, True)
    np.testing.assert_allclose(observation, [0.30 + 0.5 * STRIDE, 0.47], atol=1e-7)


def test_a_shorter_limit_can_be_set_when_it_is_made() -> None:
    env = gymnasium.make("spin/maze-v0", max_episode_steps=3)
    env.reset(seed=0)
    flags = [env.step(np.zeros(10, np.int64))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]


def path(env: gymnasium.Env[Any, Any], seed: int | None) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=seed)
    return np.stack([first, *(env.step(rng.integers(0, 2, 5))[0] for _ in range(20))])


def test_the_seed_decides_the_episode_also_in_another_process() -> None:
    env = gymnasium.make("spin/maze-v0", actuators=5)
    first = path(env, 3)
    assert not np.array_equal(path(env, 4), first)
    assert not np.array_equal(path(env, None), first)
    np.testing.assert_array_equal(path(env, 3), first)
    output = run_python(
        "import gymnasium\nfrom tests.envs.test_maze import path\n"
        "print(path(gymnasium.make('spin_envs:spin/maze-v0', actuators=5), 3).tobytes().hex())"
    )
    assert output == first.tobytes().hex()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_from_where_it_was_taken(duplicate: Callable[[Any], Any]) -> None:
    env = MazeEnv(5)
    path(env, 3)
    other = duplicate(env)
    on = np.ones(5, np.int64)
    for _ in range(9):
        np.testing.assert_array_equal(other.step(on * 0)[0], env.step(on * 0)[0])


@pytest.mark.parametrize("actuators", [1, 21, 5.0, True, "5", None, [5]])
def test_bad_numbers_of_actuators_are_refused(actuators: Any) -> None:
    with pytest.raises(ValueError, match="Expected actuators to be an integer from 2 to 20, got"):
        gymnasium.make("spin/maze-v0", actuators=actuators)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(4, np.int64), r"shape \(5,\).*got shape \(4,\)"),
        (1, r"got shape \(\)"),
        (np.zeros(5), "Pass bin indices"),
        (np.full(5, np.nan), "got dtype float64"),
        ([0, -1, 0, 0, 0], "Slot 1 is -1, expected 0 to 1"),
        ([0, 0, 0, 0, 2], "Slot 4 is 2, expected 0 to 1"),
    ],
)
def test_bad_actions_are_refused_and_do_not_count_as_steps(action: Any, message: str) -> None:
    env = MazeEnv(5)
    env.reset(seed=0)
    with pytest.raises(InvalidActionError, match=message):
        env.step(action)
    assert env._elapsed == 0


def test_stepping_without_an_episode_asks_for_a_reset() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"Call reset\(\)"):
        MazeEnv(5).step(np.zeros(5, np.int64))


def color_at(frame: NDArray[np.uint8], x: float, y: float) -> tuple[int, ...]:
    size = len(frame)
    return tuple(frame[int((1 - y) * size), int(x * size)].tolist())


@pytest.mark.parametrize("size", [64, 400])
def test_a_frame_shows_walls_goal_path_and_agent(size: int) -> None:
    env = MazeEnv(4, render_mode="rgb_array", size=size)
    env.reset(seed=0)
    env._position, env._path = (0.6, 0.1), [START, (0.6, 0.1)]
    frame = env.render()
    assert frame is not None
    assert frame.shape == (size, size, 3)
    assert frame.dtype == np.uint8
    walls = {color_at(frame, x, y) for x, y in [(0.02, 0.275), (0.4, 0.275), (0.525, 0.7)]}
    assert walls == {(60, 60, 60)}
    colors = {
        color_at(frame, *point)
        for point in [(0.02, 0.275), (0.275, 0.475), (0.4, 0.1), (0.6, 0.1), (0.9, 0.9)]
    }
    assert len(colors) == 5, "wall, goal, path, agent and floor must differ"
    assert color_at(frame, 0.525, 0.85) == color_at(frame, 0.9, 0.9), "the wall ends at 0.80"


PUBLISHED = {3: -1.76, 5: -5.62}


@pytest.mark.parametrize("actuators", [3, 5])
def test_a_random_policy_returns_about_what_is_published(actuators: int) -> None:
    """`python -m tests.measure.maze_random` does all of them with 2,000 episodes."""
    returns = random_returns(actuators, range(500))
    reaching = (PUBLISHED[actuators] + 7.45) / 100  # the share that published mean stands for
    error = 100 * np.sqrt(reaching * (1 - reaching) / len(returns))
    assert 0 < (returns > 0).sum() < 60
    assert abs(returns.mean() - PUBLISHED[actuators]) < 3 * error
    failed = returns[returns < 0]
    np.testing.assert_allclose(failed, -7.45, atol=1e-9)
