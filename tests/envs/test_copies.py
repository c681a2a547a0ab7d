"""Copies of environments: simulators that allow one, and what wrappers have learned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation

from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_envs import EnvironmentCopyError
from tests.envs.single_instance import OneInstance

ENV = "test/one-instance-v0"


class Watching:
    """A policy that takes each slot's last choice and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def predict(self, x: Any) -> Any:
        self.seen.append(np.array(x))
        return np.tile([1, 2], (len(x), 1))

    sample_action = predict


@pytest.fixture(autouse=True)
def _no_instance_yet() -> Iterator[None]:
    OneInstance.made = 0
    yield
    OneInstance.made = 0


def make(second: str) -> Any:
    return gymnasium.make(ENV, second=second)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ("raises", "could not be copied: RuntimeError: The simulator is in use"),
        ("waits", r"a second instance did not answer in 0\.5 seconds"),
        ("waits at reset", r"a second instance did not answer in 0\.5 seconds"),
        ("is broken", "does otherwise than it"),
        ("shares", "shares its state"),
    ],
)
def test_a_simulator_of_one_instance_is_found_out(second: str, problem: str) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentCopyError, match=rf"{problem}.*n_trials=1.*processes=True"):
        LockstepEvaluator(make(second), n_trials=2, copy_seconds=0.5)
    assert time.monotonic() - began < 5.0


def test_one_trial_plays_in_the_environment_itself() -> None:
    env = make("raises")
    with closing(LockstepEvaluator(env, n_trials=1)) as evaluator:
        assert evaluator(Watching()) == 10.0
        assert evaluator(Watching()) == 10.0
    env.reset(seed=0)  # it is not closed
    assert OneInstance.made == 1


def test_an_environment_without_a_spec_is_copied_as_it_is() -> None:
    env = OneInstance("works", length=3)
    assert LockstepEvaluator(env, n_trials=4).returns(Watching()).tolist() == [6.0] * 4


@pytest.mark.parametrize("n_trials", [1, 3])
def test_processes_play_what_allows_one_instance(n_trials: int) -> None:
    env: Any = NormalizeObservation(make("raises"))
    env.obs_rms.mean += 2.0
    policy = Watching()
    with closing(LockstepEvaluator(env, n_trials, processes=True)) as evaluator:
        assert evaluator.returns(policy).tolist() == [10.0] * n_trials
    assert policy.seen[0][0, 0] == pytest.approx(-2.0, rel=1e-3)  # no steps yet: (0 - 2) / 1


def test_a_copy_does_not_touch_random_numbers_of_the_environment() -> None:
    drawn = []
    for evaluate in (False, True):
        OneInstance.made = 0
        env = make("works")
        env.reset(seed=5)
        env.action_space.seed(6)
        if evaluate:
            LockstepEvaluator(env, n_trials=2)(Watching())
        drawn.append([env.reset()[0].tolist(), env.action_space.sample().tolist()])
    assert drawn[0] == drawn[1]


class Centering(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Subtracts a running mean, as users write it: without keeping its arguments."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.mean, self.count = np.zeros(3), 0

    def observation(self, observation: Any) -> Any:
        self.count += 1
        self.mean = self.mean + (observation - self.mean) / self.count
        return (observation - self.mean).astype(np.float32)


def centered(env: Any) -> Any:
    wrapped = Centering(env)
    wrapped.mean, wrapped.count = np.full(3, 40.0), 10**9
    return wrapped


def normalized(env: Any) -> Any:
    wrapped: Any = NormalizeObservation(env)
    wrapped.obs_rms.mean, wrapped.obs_rms.count = np.full(3, 40.0), 1e9
    return wrapped


@pytest.mark.parametrize("wrap", [centered, normalized], ids=["of a user", "of Gymnasium"])
@pytest.mark.parametrize("n_trials", [1, 3])
def test_copies_know_what_wrappers_have_learned(wrap: Any, n_trials: int) -> None:
    env = wrap(make("works"))
    evaluator = LockstepEvaluator(env, n_trials)
    first = Watching()
    evaluator(first)
    assert first.seen[0][:, 0] == pytest.approx(-40.0, rel=1e-3)
    if wrap is normalized:
        env.obs_rms.mean = np.full(3, 70.0)  # it has learned more since
        before = (env.obs_rms.mean.copy(), env.obs_rms.count)
    else:
        env.mean = np.full(3, 70.0)
        before = (env.mean.copy(), env.count)
    second = Watching()
    evaluator(second)
    assert second.seen[0][:, 0] == pytest.approx(-70.0, rel=1e-3)
    after = (env.obs_rms.mean, env.obs_rms.count) if wrap is normalized else (env.mean, env.count)
    assert np.array_equal(before[0], after[0])
    assert before[1] == after[1]
    env.reset(seed=0)  # and learns on
    assert (env.obs_rms.count if wrap is normalized else env.count) == after[1] + 1


def test_a_constant_observation_space_of_a_wrapper_is_copied() -> None:
    env = gymnasium.wrappers.TransformObservation(
        make("works"), lambda x: x * 2.0, Box(-np.inf, np.inf, (3,), np.float32)
    )
    policy = Watching()
    assert LockstepEvaluator(env, n_trials=2)(policy) == 10.0
    assert policy.seen[1][:, 0].tolist() == [2.0, 2.0]
