"""A client that is not ours learns on the environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete

import spin_envs  # noqa: F401 - registers the environments

pytestmark = [
    pytest.mark.slow,
    # SB3 also imports gym, which prints a notice with NumPy 2.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def sb3() -> Any:
    reason = "needs stable-baselines3: pip install 'spin-d3rlpy[slow]'"
    return pytest.importorskip("stable_baselines3", reason=reason)


def train(sb3: Any, env_id: str, steps: int, **kwargs: Any) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(env_id, n_envs=8, seed=0, env_kwargs=kwargs)
    algo = sb3.PPO(
        "MlpPolicy",
        envs,
        seed=0,
        n_steps=256,
        batch_size=256,
        learning_rate=1e-3,
        device="cpu",
    )
    algo.learn(steps)
    return algo


def mean_return(algo: Any, env_id: str, episodes: int, **kwargs: Any) -> float:
    env = gymnasium.make(env_id, **kwargs)
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action, _ = algo.predict(observation, deterministic=False)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def test_ppo_runs_on_cheetah(sb3: Any) -> None:
    algo = train(sb3, "spin/cheetah-run-v0", steps=8192, bins=3)
    assert algo.num_timesteps >= 8192
    assert algo.action_space == MultiDiscrete([3] * 6)
    assert mean_return(algo, "spin/cheetah-run-v0", episodes=1, bins=3) >= 0


def test_ppo_finds_the_goal_of_the_maze(sb3: Any) -> None:
    algo = train(sb3, "spin/maze-v0", steps=65_536, actuators=3)
    assert mean_return(algo, "spin/maze-v0", episodes=20, actuators=3) > 0
