"""Logs whose actions can leave the observation as it was, and policies that stand still there."""

from __future__ import annotations

import dataclasses
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.search import standstill as module
from spin_d3rlpy.search.standstill import standstill

LENGTH = 40
REST = [1, 1]  # does nothing


def log(
    *,
    reward_of_rest: float = 0.0,
    wakes: float = 0.0,
    drift: float = 1e-6,
    repeats: float = 0.6,
    n: int = 40,
) -> DeviceReplayBuffer:
    """A finger that rests where no motor moves it; whoever logged often acts as before.

    Args:
        reward_of_rest: of a step that rests; 1 of others.
        wakes: chance that a resting finger is moved all the same.
        drift: in a step at rest.
        repeats: chance that an action is the one before.
        n: episodes.
    """
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(n):
        states, rewards = np.zeros((LENGTH + 1, 2), np.float32), np.zeros(LENGTH, np.float32)
        actions = np.zeros((LENGTH, 2), np.int64)
        states[0] = rng.normal(size=2)
        for t in range(LENGTH):
            actions[t] = rng.integers(3, size=2)
            if t > 0 and rng.random() < repeats:
                actions[t] = actions[t - 1]
            rests = (actions[t] == REST).all() and rng.random() >= wakes
            states[t + 1] = states[t] + (drift if rests else rng.normal(size=2))
            rewards[t] = reward_of_rest if rests else 1.0
        episodes.append(EpisodeArrays(f"episode {i}", states, actions, rewards, False))
    return DeviceReplayBuffer(stack_episodes(iter(episodes), [LENGTH] * n, [3, 3]))


@pytest.mark.parametrize(
    ("changes", "stays", "is_trap"),
    [
        ({}, True, True),
        ({"drift": 0.0}, True, True),
        ({"drift": 0.01}, False, False),  # it moves slowly
        ({"reward_of_rest": 1.0}, True, False),
        ({"reward_of_rest": 2.0}, True, False),  # whoever has arrived may stay
        ({"wakes": 0.5}, True, False),  # something comes, in the end
        ({"repeats": 0.0}, True, False),  # hardly any action was repeated: nobody knows
    ],
)
def test_in_a_trap_steps_are_frequent_return_less_and_repeat(
    changes: Any, stays: bool, is_trap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = standstill(log(**changes))
    assert (found.share > 0.01, found.is_trap) == (stays, is_trap)
    monkeypatch.setattr(module, "COMPARED_AT_ONCE", 300)  # as if they were large
    assert standstill(log(**changes)) == found


def test_what_follows_an_episodes_last_step_is_not_known() -> None:
    """Tables repeat its observation there."""
    moving = log(drift=1.0)
    rows = torch.arange(40 * (LENGTH + 1))
    whole = moving.observations_at(rows).clone().view(40, LENGTH + 1, 2)
    whole[:, -1] = whole[:, -2]
    assert standstill(moving.with_observations(whole.view(-1, 2))).share == 0.0
    whole[3, 5] = whole[3, 4]
    found = standstill(moving.with_observations(whole.view(-1, 2)))
    assert 0.0 < found.share < module.LEAST_SHARE
    assert not found.is_trap


def test_samples_act_where_a_function_of_the_state_would_stand_still() -> None:
    d3rlpy.seed(0)
    algo: Any = SPINIDQL(recipe="tuned", batch_size=32, state_model_updates=20)
    algo.config.policy.pretraining.max_updates = 20
    quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(log(n=400), n_steps=2, n_steps_per_epoch=2, **quiet)
    trust = algo.trust
    assert (trust.stays, trust.is_trap) == standstill(algo._held_out)
    assert trust.is_trap
    nothing = (0.0,) * len(trust.searches)
    refused = dataclasses.replace(trust, confirmed=nothing, modeled=nothing)
    algo.impl.trust_critics(refused)
    assert algo.trust == refused
    assert algo.trust.acts_by == "samples"
    assert "can stand still for ever" in str(algo.trust)
    x = np.zeros((400, 2), np.float32)
    assert (algo.predict(x) != algo.predict(x)).any()
    algo.config.search = "never"
    assert (algo.predict(x) == algo.predict(x[:1])).all()
