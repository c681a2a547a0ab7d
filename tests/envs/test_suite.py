from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_control import suite
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from spin_envs import InvalidActionError, UnknownTaskError
from spin_envs.suite import DiscretizedSuiteEnv
from tests.subprocesses import run_python

# Unequal bins, so that no two dimensions can be swapped; quadruped's control range is not +-1.
STEPPED = [("cheetah", "run"), ("finger", "spin"), ("humanoid", "stand"), ("quadruped", "walk")]


def make(domain: str, task: str, **kwargs: Any) -> DiscretizedSuiteEnv:
    env = gymnasium.make(f"spin/{domain}-{task}-v0", **kwargs).unwrapped
    assert isinstance(env, DiscretizedSuiteEnv)
    return env


def pickled(env: DiscretizedSuiteEnv) -> DiscretizedSuiteEnv:
    copied = pickle.loads(pickle.dumps(env))
    assert isinstance(copied, DiscretizedSuiteEnv)
    return copied


def play(env: gymnasium.Env[Any, Any], seed: int | None, steps: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    assert isinstance(env.action_space, MultiDiscrete)
    observations = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        observations.append(env.step(rng.integers(env.action_space.nvec))[0])
    return np.stack(observations)


@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is -?infinity")
@pytest.mark.parametrize(("domain", "task"), STEPPED)
def test_passes_gymnasiums_checker_without_a_warning(domain: str, task: str) -> None:
    check_env(make(domain, task), skip_render_check=True)


def test_spaces_are_multidiscrete_and_flat_float32() -> None:
    env = make("cheetah", "run", bins=[2, 3, 4, 5, 6, 7])
    assert env.action_space == MultiDiscrete([2, 3, 4, 5, 6, 7])
    assert isinstance(env.observation_space, Box)
    assert env.observation_space.shape == (17,)
    assert env.observation_space.dtype == np.float32
    observation, info = env.reset(seed=0)
    assert observation.dtype == np.float32
    assert env.observation_space.contains(observation)
    assert info == {}


def test_observations_keep_dm_controls_key_order() -> None:
    # humanoid's keys are not in alphabetical order, in which Gymnasium would flatten them.
    expected = suite.load("humanoid", "stand", task_kwargs={"random": 5}).reset().observation
    assert list(expected) != sorted(expected)
    observation, _ = make("humanoid", "stand").reset(seed=5)
    flat = np.concatenate([np.ravel(value) for value in expected.values()])
    np.testing.assert_array_equal(observation, flat.astype(np.float32))


@pytest.mark.parametrize(("domain", "task"), [*STEPPED, ("lqr", "lqr_6_2")])
def test_steps_as_dm_control_does_with_the_mapped_action(domain: str, task: str) -> None:
    theirs = suite.load(domain, task, task_kwargs={"random": 12})
    n = theirs.action_spec().shape[0]
    bins = [2 + i % 4 for i in range(n)]
    ours = make(domain, task, bins=bins)
    play(ours, seed=1, steps=10)  # what happened before a seeded reset must not matter
    rng = np.random.default_rng(12)

    def flat(timestep: Any) -> NDArray[np.float32]:
        values = [np.ravel(value) for value in timestep.observation.values()]
        return np.concatenate(values).astype(np.float32)

    np.testing.assert_array_equal(ours.reset(seed=12)[0], flat(theirs.reset()))
    rewards = []
    for _ in range(300):
        action = rng.integers(bins)
        observation, reward, terminated, truncated, _ = ours.step(action)
        timestep = theirs.step([-1 + 2 * k / (b - 1) for k, b in zip(action, bins, strict=True)])
        np.testing.assert_array_equal(observation, flat(timestep))
        assert reward == timestep.reward
        assert not terminated
        assert not truncated
        rewards.append(reward)
    assert np.ptp(rewards) > 0


def test_grid_spans_minus_one_to_one_whatever_the_control_range() -> None:
    assert suite.load("quadruped", "walk").action_spec().maximum.max() > 1
    env = make("quadruped", "walk", bins=5)
    env.reset(seed=0)
    env.step(np.full(12, 4))
    np.testing.assert_array_equal(env._env.physics.control(), np.ones(12))


@pytest.mark.parametrize(("domain", "task"), [("cheetah", "run"), ("lqr", "lqr_2_1")])
def test_seeded_reset_gives_the_same_episode_again_and_elsewhere(domain: str, task: str) -> None:
    env = make(domain, task)
    first = play(env, seed=3, steps=20)
    assert not np.array_equal(play(env, seed=4, steps=20), first)
    np.testing.assert_array_equal(play(env, seed=3, steps=20), first)
    np.testing.assert_array_equal(play(make(domain, task), seed=3, steps=20), first)


def test_seeded_reset_gives_the_same_episode_in_another_process() -> None:
    output = run_python(
        "from tests.envs.test_suite import make, play\n"
        "print(play(make('cheetah', 'run'), seed=3, steps=20).tobytes().hex())"
    )
    assert output == play(make("cheetah", "run"), seed=3, steps=20).tobytes().hex()


def test_unseeded_reset_goes_on_with_the_stream_of_the_seeded_one() -> None:
    def starts(env: DiscretizedSuiteEnv) -> NDArray[np.float32]:
        return np.stack([env.reset(seed=seed)[0] for seed in (3, None, None)])

    env = make("cheetah", "run")
    first = starts(env)
    assert len(np.unique(first, axis=0)) == 3
    np.testing.assert_array_equal(starts(make("cheetah", "run")), first)


def test_seeds_beyond_32_bits_are_taken() -> None:
    env = make("cheetah", "run")
    np.testing.assert_array_equal(env.reset(seed=2**32 + 3)[0], env.reset(seed=3)[0])


@pytest.mark.parametrize("wrapped", [True, False])
def test_truncates_at_exactly_a_thousand_steps(wrapped: bool) -> None:
    env = gymnasium.make("spin/finger-spin-v0")
    env = env if wrapped else env.unwrapped
    env.reset(seed=0)
    for _ in range(999):
        _, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
        assert not terminated
        assert not truncated
    _, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
    assert not terminated
    assert truncated


def test_a_task_that_ends_itself_is_terminated() -> None:
    env = make("lqr", "lqr_2_1")
    env.reset(seed=0)
    physics = env._env.physics
    with physics.reset_context():  # lqr ends at the origin, at rest
        physics.set_state(np.zeros(4))
    _, _, terminated, truncated, _ = env.step(np.array([1]))
    assert terminated
    assert not truncated


def test_stepping_without_an_episode_asks_for_a_reset() -> None:
    env = make("cheetah", "run")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"Call reset\(\)"):
        env.step(np.zeros(6, np.int64))
    env = make("finger", "spin")
    play(env, seed=0, steps=1000)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"Call reset\(\)"):
        env.step(np.zeros(2, np.int64))


def test_frame_rate_belongs_to_the_instance() -> None:
    cheetah, finger = make("cheetah", "run"), make("finger", "spin")
    assert cheetah.metadata["render_fps"] == 100
    assert finger.metadata["render_fps"] == 50
    assert "render_fps" not in DiscretizedSuiteEnv.metadata


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(5, np.int64), r"shape \(6,\).*got shape \(5,\)"),
        (np.zeros((1, 6), np.int64), r"got shape \(1, 6\)"),
        (1, r"got shape \(\)"),
        (np.zeros(6), "Pass bin indices"),
        (np.full(6, np.nan), "got dtype float64"),
        (np.zeros(6, bool), "got dtype bool"),
        ([0, 0, 0, -1, 0, 0], "Slot 3 is -1, expected 0 to 2"),
        ([0, 0, 0, 0, 0, 3], "Slot 5 is 3, expected 0 to 2"),
    ],
)
def test_bad_action_is_refused_and_the_episode_goes_on(action: Any, message: str) -> None:
    env = make("cheetah", "run")
    env.reset(seed=0)
    before = env._env.physics.get_state()
    with pytest.raises(InvalidActionError, match=message):
        env.step(action)
    np.testing.assert_array_equal(env._env.physics.get_state(), before)
    env.step(np.array([0, 1, 2, 0, 1, 2]))


@pytest.mark.parametrize("bins", [1, 1002, 3.0, True, [3, 3]])
def test_bad_bins_are_refused_by_make(bins: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        gymnasium.make("spin/cheetah-run-v0", bins=bins)


def test_unknown_id_lists_a_near_match() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="cheetah-run"):
        gymnasium.make("spin/cheetah-rum-v0")


def test_unknown_task_lists_near_matches() -> None:
    with pytest.raises(UnknownTaskError, match=r"cheetah-rum\. Near matches: cheetah-run"):
        DiscretizedSuiteEnv("cheetah", "rum")
    with pytest.raises(UnknownTaskError, match=r"no task zzz-qqq.*acrobot-swingup.*walker-run"):
        DiscretizedSuiteEnv("zzz", "qqq")


WITHOUT_DM_CONTROL = (
    "import sys\n"
    "sys.modules.update(dict.fromkeys(['dm_control', 'mujoco', 'labmaze']))\n"  # cannot be imported
    "import gymnasium, spin_envs\n"
)


def test_missing_dm_control_is_an_error_at_make_that_says_what_to_install() -> None:
    message = run_python(
        WITHOUT_DM_CONTROL + "for kwargs in ({'id': 'spin/cheetah-run-v0'},\n"
        "    {'id': 'spin/discretized-v0', 'env_id': 'dm_control/cheetah-run-v0'}):\n"
        "    try:\n"
        "        gymnasium.make(**kwargs)\n"
        "    except spin_envs.MissingDependencyError as error:\n"
        "        print(error)"
    )
    suite_message, shimmy_message = message.splitlines()
    assert "pip install 'dm_control<1.1' 'mujoco>=3.17,<4'" in suite_message
    assert "no wheel for 3.13" in suite_message
    assert "need Shimmy and dm_control" in shimmy_message


def test_without_dm_control_the_other_environments_work() -> None:
    output = run_python(
        WITHOUT_DM_CONTROL + "for kwargs in ({'id': 'spin/maze-v0'},\n"
        "    {'id': 'spin/discretized-v0', 'env_id': 'Pendulum-v1'}):\n"
        "    env = gymnasium.make(**kwargs, render_mode='rgb_array')\n"
        "    env.reset(seed=0)\n"
        "    env.step(env.action_space.sample())\n"
        "envs = spin_envs.make_batch('spin/maze-v0', 2)\n"
        "envs.reset(seed=0)\n"
        "envs.step(envs.action_space.sample())\n"
        "print(spin_envs.normalized_score('spin/cheetah-run-v0', 5.39))"
    )
    assert output == "0.0"


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_goes_on_from_where_it_was_taken(
    duplicate: Callable[[DiscretizedSuiteEnv], DiscretizedSuiteEnv],
) -> None:
    env = make("cheetah", "run")
    play(env, seed=0, steps=5)
    other = duplicate(env)
    action = np.array([0, 1, 2, 2, 1, 0])
    np.testing.assert_array_equal(other.step(action)[0], env.step(action)[0])
    np.testing.assert_array_equal(other.reset()[0], env.reset()[0])


def test_unknown_render_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"None or one of .'rgb_array'., got 'ansi'"):
        DiscretizedSuiteEnv("cheetah", "run", render_mode="ansi")


def test_render_without_a_mode_warns() -> None:
    with pytest.warns(UserWarning, match="needs render_mode='rgb_array'"):
        assert make("cheetah", "run").render() is None


@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is -?infinity")
@pytest.mark.usefixtures("renders")
def test_renders_frames_of_the_size_asked_for() -> None:
    env = make("cheetah", "run", render_mode="rgb_array", width=32, height=24)
    env.reset(seed=0)
    frame = env.render()
    assert frame is not None
    assert frame.shape == (24, 32, 3)
    assert frame.dtype == np.uint8
    assert frame.std() > 0
    check_env(env)
    env.close()
