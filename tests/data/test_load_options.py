"""What `load_dataset` can do to a dataset while it reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, MultiDiscrete
from gymnasium.wrappers import FlattenObservation
from minari import MinariDataset

from spin_d3rlpy import FactoredBC
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator

Make = Callable[..., Any]


def test_continuous_actions_become_the_nearest_bins_and_the_environment_takes_them(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes([3, 4])
    rng = np.random.default_rng(0)
    for e in episodes:
        e.observations = rng.normal(size=(len(e.rewards) + 1, 3)).astype(np.float32)
        e.actions = rng.uniform(-2, 2, (len(e.rewards), 1)).astype(np.float32)
    episodes[0].actions[:5, 0] = [-2.0, -0.51, -0.49, 0.51, 2.0]
    space = Box(-np.inf, np.inf, (3,), np.float32)
    make_minari(Box(-2, 2, (1,), np.float32), episodes, space, gymnasium.spec("Pendulum-v1"))
    buffer, env = load_dataset("others/things-v0", bins=5)
    assert buffer.nvec == [5]
    assert buffer.actions[:5, 0].tolist() == [0, 1, 2, 3, 4]
    assert env.action_space == MultiDiscrete([5])
    algo = FactoredBC()
    algo.build_with_dataset(buffer)
    assert LockstepEvaluator(env, 2)(algo) < 0.0


def test_nested_observations_are_flat_in_their_spaces_order(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes([3, 4])
    space = Dict({"b": Box(-9, 99, (1,), np.float32), "a": Box(-9, 99, (1,), np.float32)})
    for e in episodes:
        e.observations = {"b": e.observations[:, :1], "a": e.observations[:, 1:]}
    dataset = DeviceReplayBuffer.from_minari(make_minari(MultiDiscrete([3, 4]), episodes, space))
    assert dataset.observations[:3].tolist() == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]  # a, then b


class NestedEnv(gymnasium.Env[Any, Any]):
    """Observations in a dictionary, two slots."""

    observation_space = Dict({"x": Box(-1, 1, (2,)), "k": gymnasium.spaces.Discrete(3)})
    action_space = MultiDiscrete([3, 4])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"x": np.ones(2, np.float32), "k": 2}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 1.0, True, False, {}


def test_the_environment_of_nested_observations_comes_flat(
    make_minari: Make, foreign_episodes: Make
) -> None:
    gymnasium.register("tests/Nested-v0", entry_point=f"{__name__}:NestedEnv")
    try:
        episodes = foreign_episodes([3, 4])
        for e in episodes:
            e.observations = {"x": e.observations, "k": np.full(len(e.observations), 2)}
        space = NestedEnv.observation_space
        make_minari(MultiDiscrete([3, 4]), episodes, space, gymnasium.spec("tests/Nested-v0"))
        buffer, env = load_dataset("others/things-v0")
        assert buffer.observations.shape[1] == 5
        observation, _ = env.reset()
        assert observation.shape == (5,)
        algo = FactoredBC()
        algo.build_with_dataset(buffer)
        assert LockstepEvaluator(env, 3)(algo) == 1.0
        assert isinstance(load_dataset("others/things-v0")[1], FlattenObservation)
    finally:
        del gymnasium.registry["tests/Nested-v0"]


def test_only_the_first_episodes_are_loaded_on_request(built: MinariDataset) -> None:
    buffer, _ = load_dataset(built, max_episodes=2)
    full, _ = load_dataset(built)
    assert buffer.size() == 2
    assert torch.equal(buffer.observations, full.observations[: len(buffer.observations)])
