"""Logs whose actions can leave the observation as it was, and policies that stand still there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL
from spin_d3rlpy.critics.base import best_of
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.search import standstill as module
from spin_d3rlpy.search.agreement import measure_trust
from spin_d3rlpy.search.standstill import standstill
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from tests.exported_files import exported_actions

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics", "short_probes_of_states")
LENGTH = 40
REST = [1, 1]  # does nothing


def log(
    *,
    reward_of_rest: float = 0.0,
    wakes: float = 0.0,
    drift: float = 1e-6,
    repeats: float = 0.6,
    lucky: float = 0.0,
    sinks: bool = False,
    n: int = 40,
) -> DeviceReplayBuffer:
    """A finger that rests where no motor moves it; whoever logged often acts as before.

    Args:
        reward_of_rest: of a step that rests; 1 of others.
        wakes: chance that a resting finger is moved all the same.
        drift: in a step at rest.
        repeats: chance that an action is the one before.
        lucky: chance that a step that rests finds something and returns 2; the next one moves.
        sinks: whether a finger that rests does so for the rest of the episode.
        n: episodes.
    """
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(n):
        states, rewards = np.zeros((LENGTH + 1, 2), np.float32), np.zeros(LENGTH, np.float32)
        actions = np.zeros((LENGTH, 2), np.int64)
        states[0], has_found, has_sunk = rng.normal(size=2), False, False
        for t in range(LENGTH):
            actions[t] = rng.integers(3, size=2)
            if t > 0 and rng.random() < repeats:
                actions[t] = actions[t - 1]
            rests = (actions[t] == REST).all() and rng.random() >= wakes and not has_found
            has_sunk = sinks and (has_sunk or rests)
            rests = rests or has_sunk
            has_found = rests and rng.random() < lucky
            states[t + 1] = states[t] + (drift if rests else rng.normal(size=2))
            rewards[t] = 2.0 if has_found else reward_of_rest if rests else 1.0
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
        ({"lucky": 0.3}, True, True),  # whoever was paid did not do nothing
        ({"repeats": 0.0}, True, True),  # few actions were repeated: all did nothing again
        ({"repeats": 0.0, "n": 5}, True, False),  # hardly any: nobody knows
        ({"repeats": 1.0}, True, True),  # no other action was ever tried, as of finger-spin
        ({"sinks": True}, True, False),  # whatever is done next does nothing either
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
    algo: Any = SPINIDQL(
        recipe="tuned", find_own_columns=False, batch_size=32, state_model_updates=20
    )
    algo.config.policy.pretraining.max_updates = 20
    quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(log(n=400), n_steps=2, n_steps_per_epoch=2, **quiet)
    trust = algo.trust
    assert (trust.stays, trust.is_trap) == standstill(log(n=400))
    assert trust.is_trap
    assert not algo.impl.state_model.is_learned  # it would not see who stands still
    one = dataclasses.replace(trust, choice_confirmed=0.0)
    algo.impl.trust_critics(one)
    assert algo.trust == one
    assert (one.acts_by, one.chooses_samples) == ("samples", False)
    assert "for ever, so in each call a new sample is drawn" in str(algo.trust)
    x = np.zeros((400, 2), np.float32)
    assert (algo.predict(x) != algo.predict(x)).any()
    several = sure_to_choose(trust)
    algo.impl.trust_critics(several)
    assert algo.trust == several
    assert (algo.predict(x) != algo.predict(x)).any()
    algo.config.search = "never"
    assert (algo.predict(x) == algo.predict(x[:1])).all()
    algo.hold_out(log(n=1))  # too few to hold any out, or to tell what it is like in another log
    assert not algo._standstill.is_trap


def sure_to_choose(trust: Trust) -> Trust:
    return dataclasses.replace(
        trust, choice_promised=0.06, choice_confirmed=0.05, choice_error=0.01
    )


def test_the_best_of_new_samples_acts_where_critics_confirm_each_others_choice() -> None:
    ways, none = (Search(0.9, 0.02),), (0.0,)
    refused = Trust(ways, none, none, none, 100, is_trap=True, stays=0.05)
    several = sure_to_choose(refused)
    assert several.acts_by == "samples"
    assert several.chooses_samples
    assert several.needs_critics
    drawn = "the best of some new samples is taken (other critics confirm 0.05 +- 0.01 of the"
    assert drawn in str(several)
    assert not several.is_out_of_reach
    for changes in (
        {"is_trap": False},
        {"states": 31},
        {"choice_error": 0.026},  # not surely a gain
        {"choice_promised": 0.11},  # more is not confirmed
        {"persistence": 0.5},  # of several policies
    ):
        changed = dataclasses.replace(several, **changes)
        assert (changed.chooses_samples, changed.needs_critics) == (False, False), changes
    searched = dataclasses.replace(several, promised=(1.0,), confirmed=(1.0,))
    assert searched.acts_by == "samples"
    assert dataclasses.replace(searched, is_trap=False).acts_by == "search"
    in_reach = dataclasses.replace(searched, choice_confirmed=0.0)
    assert not in_reach.is_out_of_reach
    assert dataclasses.replace(in_reach, persistence=0.5).is_out_of_reach  # nothing to choose


def test_a_choice_among_samples_is_judged_by_the_other_critics() -> None:
    torch.manual_seed(0)
    critics, samples, states = 3, 4, 200
    values, own = torch.randn(critics, samples, states), torch.zeros(samples, states, 2).long()
    of_found = torch.zeros(critics, 1, states)

    def values_of(actions: torch.Tensor) -> torch.Tensor:
        return values if len(actions) == samples else of_found

    ways, found = [Search(0.9, 0.02)], own[0]
    trust = measure_trust(ways, critics, lambda *_: found, values_of, own, found, 2.0, 1.0)
    promised, confirmed = [], []
    for critic in range(critics):
        for state in range(states):
            best = int(values[critic, :, state].argmax())
            gains = values[:, best, state] - values[:, :, state].mean(1)
            promised.append(float(gains[critic]))
            confirmed.append(float(gains.sum() - gains[critic]) / (critics - 1))
    assert trust.choice_promised == pytest.approx(np.mean(promised), abs=1e-5)
    assert trust.choice_confirmed == pytest.approx(np.mean(confirmed), abs=1e-5)
    of_states = np.reshape(confirmed, (critics, states)).mean(0)
    assert trust.choice_error == pytest.approx(np.std(of_states) / states**0.5, abs=1e-5)


def test_of_new_samples_the_one_acts_that_critics_value_most(tmp_path: Path) -> None:
    d3rlpy.seed(0)
    algo: Any = SPINIDQL(recipe="tuned", find_own_columns=False, batch_size=32)
    algo.config.policy.pretraining.max_updates = 20
    quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(log(), n_steps=100, n_steps_per_epoch=100, **quiet)
    one = dataclasses.replace(algo.trust, is_trap=True, choice_confirmed=0.0, stays=0.0)
    x = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    values = {}
    for name, trust in {"one": one, "best": sure_to_choose(one)}.items():
        algo.impl.trust_critics(trust)
        algo.impl.modules.q_funcs.act_by(2)  # it chooses by `gamma`, whatever a search would
        actions = algo.predict(x)
        values[name] = algo.predict_value(x, actions)
        algo.save_policy(str(tmp_path / f"{name}.pt"))
        others = [algo.predict(x), algo.predict_with(x)]  # a function of what never stays
        others.append(exported_actions(str(tmp_path / f"{name}.pt"), observations=x))
        for found in others:
            is_same = (found == actions).all(1)
            assert is_same.mean() > (0.97 if name == "best" else 0.999)
            # Of two that are worth nearly the same, rounding decides, which differs by batch.
            of_found = algo.predict_value(x, found)
            np.testing.assert_allclose(of_found, values[name], rtol=0.02)
    with torch.no_grad():
        scaled = algo.network_input(x)
        drawn = algo.impl._draw_candidates(scaled, 4, True, None, samples=4)
        best = best_of(drawn, algo.impl.values_by_gamma(scaled, drawn)).numpy()
    assert (algo.predict(x) == best).all(1).mean() > 0.97
    spread = np.std(values["one"] - values["best"])
    assert (values["best"] - values["one"]).mean() > 0.3 * spread
    assert (values["best"] - values["one"] >= -1e-4).mean() > 0.9  # one is among them
    given = np.full((300, 2), -1)
    given[:, 0] = 2
    assert (algo.predict_with(x, given=given)[:, 0] == 2).all()
