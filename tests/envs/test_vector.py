from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from spin_envs import InvalidActionError, make_batch
from spin_envs.rollout import rollout
from spin_envs.vector import InProcessVectorEnv, MazeVectorEnv, SuiteVectorEnv

# A heavy model, a light one, one of dm_control's that ends itself, and the maze.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("spin/humanoid-stand-v0", {"bins": 3}),
    ("spin/cheetah-run-v0", {"bins": [2, 3, 4, 5, 6, 7]}),
    ("spin/lqr-lqr_2_1-v0", {"bins": 3}),
    ("spin/maze-v0", {"actuators": 5}),
]


def fast(env_id: str, num_envs: int = 3, **kwargs: Any) -> InProcessVectorEnv:
    env = gymnasium.make_vec(
        env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs
    )
    assert isinstance(env, InProcessVectorEnv)
    return env


def assert_equal_steps(
    ours: VectorEnv[Any, Any, Any], theirs: VectorEnv[Any, Any, Any], steps: int, seed: Any
) -> tuple[int, int]:
    """Steps both with the same actions; returns the numbers of episodes that ended."""
    rng = np.random.default_rng(0)
    single = ours.single_action_space
    assert isinstance(single, MultiDiscrete)
    results: Any = (ours.reset(seed=seed), theirs.reset(seed=seed))
    ended = np.zeros(2, int)
    for _ in range(steps):
        for actual, other in zip(*results, strict=True):
            if isinstance(actual, dict):
                assert actual == other == {}
                continue
            np.testing.assert_array_equal(actual, other)
            assert actual.dtype == other.dtype
        actions = rng.integers(np.tile(single.nvec, (ours.num_envs, 1)))
        results = (ours.step(actions), theirs.step(actions))
        ended += [results[0][2].sum(), results[0][3].sum()]
    return int(ended[0]), int(ended[1])


@pytest.mark.parametrize(("env_id", "kwargs"), CASES)
def test_steps_are_those_of_gymnasiums_sync_vector_env_through_autoresets(
    env_id: str, kwargs: dict[str, Any]
) -> None:
    ours = fast(env_id, max_episode_steps=7, **kwargs)
    theirs = gymnasium.make_vec(
        env_id, num_envs=3, vectorization_mode="sync", max_episode_steps=7, **kwargs
    )
    assert isinstance(theirs, SyncVectorEnv)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.metadata["render_fps"] == theirs.metadata["render_fps"]
    _, truncated = assert_equal_steps(ours, theirs, steps=30, seed=[5, 9, 2])
    assert truncated == 9
    ours.close()
    theirs.close()


def test_episodes_that_end_at_different_times_reset_by_themselves() -> None:
    ours = fast("spin/maze-v0", num_envs=20, actuators=3)
    theirs = gymnasium.make_vec("spin/maze-v0", 20, "sync", actuators=3)
    terminated, truncated = assert_equal_steps(ours, theirs, steps=900, seed=0)
    assert terminated > 2
    assert truncated > 80


def test_the_environments_own_time_limit_holds_without_another() -> None:
    env = MazeVectorEnv(2, actuators=3)
    env.reset(seed=0)
    flags = [env.step(np.zeros((2, 3), int))[3].tolist() for _ in range(151)]
    assert flags[149] == [True, True]
    assert not np.any(flags[:149] + flags[150:])


def test_the_step_after_an_end_ignores_the_action_and_pays_nothing() -> None:
    env = fast("spin/cheetah-run-v0", num_envs=2, max_episode_steps=3)
    env.reset(seed=0)
    for _ in range(3):
        *_, truncated, _ = env.step(np.full((2, 6), 2))
    assert truncated.all()
    observation, rewards, terminated, truncated, _ = env.step(np.full((2, 6), 2))
    assert rewards.tolist() == [0.0, 0.0]
    assert not (terminated | truncated).any()
    fresh = fast("spin/cheetah-run-v0", num_envs=2)
    fresh.reset(seed=0)
    np.testing.assert_array_equal(observation, fresh.reset()[0])


def test_callers_end_episodes_of_single_instances() -> None:
    envs = make_batch("spin/maze-v0", 2, actuators=3, max_episode_steps=5)
    first, _ = envs.reset(seed=0)
    assert isinstance(envs, InProcessVectorEnv)
    actions = np.array([[1, 0, 0], [1, 0, 0]])
    for _ in range(2):
        moved = envs.step(actions)[0]
    envs.end_episodes(np.array([True, False]))
    observations, rewards, terminated, truncated, _ = envs.step(actions)
    np.testing.assert_array_equal(observations[0], first[0])
    assert (rewards == 0).tolist() == [True, False]
    assert not (terminated | truncated).any()
    assert (observations[1] != moved[1]).any()
    ends = [envs.step(actions)[3].tolist() for _ in range(5)]
    assert ends[1] == [False, True]  # after five steps of its first episode
    assert ends[4][0]  # after five of its second


def test_a_reset_starts_the_count_of_steps_anew() -> None:
    env = fast("spin/maze-v0", max_episode_steps=3)
    for _ in range(2):
        env.reset(seed=0)
        flags = [env.step(np.zeros((3, 10), int))[3].all() for _ in range(2)]
        assert flags == [False, False]


def test_what_a_step_returned_stays_as_it_was() -> None:
    env = fast("spin/cheetah-run-v0")
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second = env.step(np.zeros((3, 6), int))[0]
    kept_second = second.copy()
    env.step(np.ones((3, 6), int))
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(second, kept_second)


def test_seeds_are_one_per_instance_or_count_up() -> None:
    env = fast("spin/cheetah-run-v0")
    one, _ = env.reset(seed=4)
    other, _ = env.reset(seed=[4, 5, 6])
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one, axis=0)) == 3
    with pytest.raises(ValueError, match="Expected 3 seeds, got 2"):
        env.reset(seed=[1, 2])


def test_make_vec_takes_the_fast_path_unless_told_otherwise() -> None:
    for env_id in ("spin/cheetah-run-v0", "spin/maze-v0"):
        assert isinstance(gymnasium.make_vec(env_id, num_envs=2), InProcessVectorEnv)
    sync = gymnasium.make_vec("spin/cheetah-run-v0", 2, "sync")
    assert isinstance(sync, SyncVectorEnv)


@pytest.mark.parametrize(("env_id", "kwargs"), CASES[1:])
def test_async_gives_the_same_steps(env_id: str, kwargs: dict[str, Any]) -> None:
    theirs = gymnasium.make_vec(env_id, 2, "async", max_episode_steps=4, **kwargs)
    assert isinstance(theirs, AsyncVectorEnv)
    try:
        ours = fast(env_id, num_envs=2, max_episode_steps=4, **kwargs)
        assert_equal_steps(ours, theirs, steps=11, seed=[8, 3])
    finally:
        theirs.close()


def test_discretized_tasks_are_vectorized_by_gymnasium() -> None:
    for mode in ("sync", "async"):
        env = gymnasium.make_vec("spin/discretized-v0", 2, mode, env_id="Pendulum-v1", bins=5)
        env.reset(seed=0)
        observation, *_ = env.step(np.array([[0], [4]]))
        assert observation.shape == (2, 3)
        env.close()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 6), int), r"shape \(3, 6\).*got shape \(2, 6\)"),
        (np.zeros(6, int), r"got shape \(6,\)"),
        (0, r"got shape \(\)"),
        (np.zeros((3, 6)), "Pass bin indices"),
        (np.full((3, 6), np.nan), "dtype float64"),
        ([[0] * 6, [0, 0, -1, 0, 0, 0], [0] * 6], "Slot 2 of environment 1 is -1"),
        ([[0] * 6, [0] * 6, [0, 0, 0, 0, 3, 0]], "Slot 4 of environment 2 is 3, expected"),
    ],
)
def test_bad_actions_are_refused_and_no_instance_is_stepped(actions: Any, message: str) -> None:
    env = fast("spin/cheetah-run-v0")
    env.reset(seed=0)
    before = [e._env.physics.get_state() for e in env.envs]  # type: ignore[attr-defined]
    with pytest.raises(InvalidActionError, match=message):
        env.step(actions)
    after = [e._env.physics.get_state() for e in env.envs]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(after, before)


def test_stepping_before_the_first_reset_is_an_error() -> None:
    for env_id, n in (("spin/cheetah-run-v0", 6), ("spin/maze-v0", 10)):
        with pytest.raises(gymnasium.error.ResetNeeded):
            fast(env_id).step(np.zeros((3, n), int))


@pytest.mark.parametrize("kwargs", [{"num_envs": 0}, {"bins": 1}])
def test_bad_arguments_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected (num_envs|bins)"):
        SuiteVectorEnv(domain="cheetah", task="run", **kwargs)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("env_id", ["spin/cheetah-run-v0", "spin/maze-v0"])
def test_a_copy_goes_on_from_where_it_was_taken(
    duplicate: Callable[[Any], Any], env_id: str
) -> None:
    env = fast(env_id)
    actions = np.ones(env.action_space.shape or (), int)
    env.reset(seed=0)
    for _ in range(5):
        env.step(actions)
    other = duplicate(env)
    for _ in range(3):
        for actual, copied in zip(env.step(actions)[:4], other.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(copied, actual)


def test_an_error_in_a_simulation_is_dm_controls() -> None:
    from dm_control.rl.control import PhysicsError

    env = fast("spin/cheetah-run-v0")
    env.reset(seed=0)
    physics = env.envs[1]._env.physics  # type: ignore[attr-defined]
    physics.data.qpos[0] = np.nan
    with pytest.raises(PhysicsError, match="BADQPOS"):
        env.step(np.zeros((3, 6), int))


def test_batches_of_other_environments_are_made_by_gymnasium() -> None:
    assert isinstance(make_batch("spin/cheetah-run-v0", 2, bins=5), InProcessVectorEnv)
    # Gymnasium's own vectorized cart pole cannot seed each instance.
    cart_pole = make_batch("CartPole-v1", 2)
    assert isinstance(cart_pole, SyncVectorEnv)
    wrapped: gymnasium.Env[Any, Any] = gymnasium.wrappers.TimeAwareObservation(
        gymnasium.make("spin/maze-v0", actuators=3)
    )
    assert wrapped.spec is not None
    batch = make_batch(wrapped.spec, 2)
    assert isinstance(batch, SyncVectorEnv)
    assert batch.single_observation_space.shape == (3,)


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_rollout_plays_the_same_episodes_in_any_vector_environment(mode: str) -> None:
    """Episodes end at different times here; only single environments show when, for sure."""
    streams = [np.random.default_rng(seed) for seed in range(12)]
    seeds = range(50, 62)
    env = gymnasium.make("spin/maze-v0", actuators=3)
    expected = []
    for seed, rng in zip(seeds, streams, strict=True):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(rng.integers(0, 2, 3))
            total, over = total + float(reward), terminated or truncated
        expected.append(total)

    streams = [np.random.default_rng(seed) for seed in range(12)]
    envs = gymnasium.make_vec("spin/maze-v0", 5, mode, actuators=3)
    episodes = list(
        rollout(envs, lambda _, i: np.stack([streams[k].integers(0, 2, 3) for k in i]), seeds)
    )
    envs.close()
    np.testing.assert_allclose([e.rewards.sum() for e in episodes], expected, rtol=1e-12)
    assert all(len(e.observations) == len(e.rewards) + 1 for e in episodes)


def test_instances_attributes_are_read_set_and_called() -> None:
    ours = fast("spin/maze-v0", actuators=3)
    theirs: Any = gymnasium.make_vec("spin/maze-v0", 3, "sync", actuators=3)
    for env in (ours, theirs):
        env.reset(seed=4)
    assert ours.get_attr("metadata") == theirs.get_attr("metadata")
    assert [n.tolist() for n in ours.get_attr("nvec")] == [[2, 2, 2]] * 3
    ours.set_attr("note", [1, 2, 3])
    assert ours.get_attr("note") == (1, 2, 3)
    ours.set_attr("note", "same")
    assert ours.call("note") == ("same", "same", "same")
    assert ours.call("close") == (None, None, None)
    with pytest.raises(ValueError, match="number of environments"):
        ours.set_attr("note", [1, 2])
    # As some of Gymnasium's wrappers of vector environments do.
    ours.call("reset", seed=7)


def test_wrappers_go_around_each_instance() -> None:
    def scaled(env: Any) -> Any:
        return gymnasium.wrappers.RescaleObservation(env, np.float32(-1.0), np.float32(1.0))

    batch = make_batch("spin/maze-v0", 2, wrappers=[scaled], actuators=3)
    assert isinstance(batch, SyncVectorEnv)
    assert batch.single_observation_space.low.tolist() == [-1.0, -1.0]  # type: ignore[attr-defined]
    plain = make_batch("spin/maze-v0", 2, actuators=3)
    first: Any = plain.reset(seed=0)[0]
    scaled_first: Any = batch.reset(seed=0)[0]
    np.testing.assert_allclose(scaled_first, 2 * first - 1, rtol=0, atol=1e-6)
    assert np.abs(scaled_first).max() > 0.1


def test_rescaling_what_has_no_bounds_is_an_error_instead_of_zeros() -> None:
    env = gymnasium.make("spin/cheetah-run-v0")
    assert not env.observation_space.is_bounded()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):  # Gymnasium's own
        gymnasium.wrappers.RescaleObservation(env, np.float32(-1.0), np.float32(1.0))
