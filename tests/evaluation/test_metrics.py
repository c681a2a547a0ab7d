from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import spin_envs  # noqa: F401 - registers the environments
from spin_d3rlpy import FactoredIQL, LockstepEvaluator
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.evaluation.metrics import ActionMode
from tests.measure.evaluation_speed import sequential_returns


@pytest.fixture(scope="module")
def env() -> Any:
    return gymnasium.make("spin/cheetah-run-v0", bins=3, max_episode_steps=120)


@pytest.fixture(scope="module")
def algo(env: Any) -> FactoredIQL:
    torch.manual_seed(0)
    algo = FactoredIQL()
    algo.build_with_env(env)
    return algo


def test_lockstep_returns_equal_sequential_ones(algo: FactoredIQL, env: Any) -> None:
    evaluator = LockstepEvaluator(env, n_trials=7, seed=40)
    expected = sequential_returns(algo, env, range(40, 47))
    assert len(set(expected.tolist())) == 7
    np.testing.assert_allclose(evaluator.returns(algo), expected, rtol=1e-9)
    assert evaluator(algo) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_a_vector_environment_gives_the_same_returns(
    algo: FactoredIQL, env: Any, mode: str
) -> None:
    expected = LockstepEvaluator(env, n_trials=7, seed=40).returns(algo)
    # Fewer instances than episodes: the last batch is smaller.
    envs = gymnasium.make_vec("spin/cheetah-run-v0", 3, mode, bins=3, max_episode_steps=120)
    evaluator = LockstepEvaluator(envs, n_trials=7, seed=40)
    np.testing.assert_allclose(evaluator.returns(algo), expected, rtol=1e-9)
    evaluator.close()


def test_every_evaluation_plays_the_same_episodes(algo: FactoredIQL, env: Any) -> None:
    modes: tuple[ActionMode, ...] = ("greedy", "sample")
    for mode in modes:
        evaluator = LockstepEvaluator(env, n_trials=3, mode=mode)
        assert np.array_equal(evaluator.returns(algo), evaluator.returns(algo))


def test_sampling_differs_from_greedy_and_leaves_training_alone(
    algo: FactoredIQL, env: Any
) -> None:
    greedy = LockstepEvaluator(env, n_trials=3)
    sampled = LockstepEvaluator(env, n_trials=3, mode="sample")
    assert not np.allclose(greedy.returns(algo), sampled.returns(algo))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sampled.returns(algo)
    assert torch.equal(torch.rand(3), expected)


def test_another_action_space_is_refused(algo: FactoredIQL) -> None:
    other = gymnasium.make("spin/cheetah-run-v0", bins=5)
    with pytest.raises(NvecMismatchError, match="the environment"):
        LockstepEvaluator(other).returns(algo)


def test_bad_arguments_are_refused(env: Any) -> None:
    with pytest.raises(ValueError, match="'greedy' or 'sample', got 'argmax'"):
        LockstepEvaluator(env, mode="argmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        LockstepEvaluator(env, n_trials=0)
