"""Rewards of other tasks: what an environment pays is what a relabeled dataset has."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from spin_d3rlpy import with_rewards
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_envs import make_batch
from spin_envs.rewards import DOMAINS, REWARDS

TASKS = {"cheetah": "spin/cheetah-run-v0", "finger": "spin/finger-spin-v0"}
STEPS = 40


def played(env: gymnasium.Env[Any, Any]) -> tuple[DeviceReplayBuffer, NDArray[np.float64]]:
    """Two episodes of random actions as a dataset without rewards, and what was paid."""
    env.action_space.seed(0)
    observations, actions, paid = [], [], []
    for seed in (1, 2):  # the spinner starts down, and up
        observations.append(env.reset(seed=seed)[0])
        for _ in range(STEPS):
            actions.append(env.action_space.sample())
            observation, reward, *_ = env.step(actions[-1])
            observations.append(observation)
            paid.append(float(reward))
    assert isinstance(env.action_space, gymnasium.spaces.MultiDiscrete)
    data = StackedEpisodes(
        observations=np.array(observations),
        actions=np.array(actions, np.int8),
        rewards=np.zeros(2 * STEPS, np.float32),
        terminals=np.zeros(2 * STEPS, np.float32),
        lengths=[STEPS, STEPS],
        nvec=env.action_space.nvec.tolist(),
    )
    return DeviceReplayBuffer(data), np.array(paid)


@pytest.mark.parametrize("name", REWARDS)
def test_a_relabeled_dataset_has_the_rewards_that_the_environment_pays(name: str) -> None:
    env = gymnasium.make(TASKS[DOMAINS[name]], reward=name)
    dataset, paid = played(env)
    relabeled = with_rewards(dataset, REWARDS[name])
    assert 0.0 < paid.mean() < 1.0
    np.testing.assert_array_equal(relabeled.rewards.numpy(), paid.astype(np.float32))
    assert relabeled.returns().tolist() == pytest.approx([paid[:STEPS].sum(), paid[STEPS:].sum()])
    assert relabeled.episodes[1].rewards.sum() == pytest.approx(paid[STEPS:].sum())
    assert not dataset.rewards.any()


def test_batches_of_environments_pay_the_same() -> None:
    env = gymnasium.make("spin/finger-spin-v0", bins=3, reward="turn")
    assert env.spec is not None
    envs: Any = make_batch(env.spec, 2)
    env.action_space.seed(0)
    env.reset(seed=2)
    envs.reset(seed=[2, 1])
    for _ in range(STEPS):
        action = env.action_space.sample()
        reward = env.step(action)[1]
        paid = envs.step(np.stack([action, action]))[1]
        assert paid.tolist() == [reward, 0.0]
        assert reward == 1.0


def test_observations_hold_what_rewards_read() -> None:
    env: Any = gymnasium.make("spin/cheetah-run-v0")
    env.reset(seed=0)
    observation = env.step(env.action_space.sample())[0]
    speed = env.unwrapped._env.physics.named.data.qvel["rootx"].item()
    assert observation[8] == np.float32(speed) != 0.0
    observation[8] = 3.0
    assert REWARDS["half-speed"](observation) == pytest.approx(0.6)
    assert REWARDS["backward"](-observation) == pytest.approx(0.3)
    env = gymnasium.make("spin/finger-turn_easy-v0")
    upright = env.unwrapped._env.physics
    env.reset(seed=0)
    # The task's own target, turned upright: its place and size are those of the reward.
    hinge = upright.named.data.xanchor["hinge", ["x", "z"]]
    radius = upright.named.model.geom_size["cap1"].sum()
    upright.named.model.site_pos["target", ["x", "z"]] = hinge + np.array([0.0, radius])
    for angle in np.linspace(-1.0, 1.0, 41):
        with upright.reset_context():
            upright.named.data.qpos["hinge"] = angle
        tip = upright.tip_position().astype(np.float32)
        observation = np.concatenate([np.zeros(2, np.float32), tip])
        assert REWARDS["turn"](observation) == (upright.dist_to_target() <= 0)


def test_rewards_of_other_environments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a reward of finger \(\['turn'\]\), got 'backward'"):
        gymnasium.make("spin/finger-spin-v0", reward="backward")


def test_rewards_of_another_shape_are_refused() -> None:
    dataset, _ = played(gymnasium.make("spin/finger-spin-v0"))
    with pytest.raises(ValueError, match=r"rewards of shape \(80,\), got \(80, 1\)"):
        with_rewards(dataset, lambda observations: observations[:, :1])
