"""The model of what follows an action, and how policies are compared in it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import SPINIDQL, FactoredIDQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.buffer.masks import pack
from spin_d3rlpy.search import state_model
from spin_d3rlpy.search.standstill import standstill
from spin_d3rlpy.search.state_model import PARTS, STEPS, Played, StateModel, learn
from spin_d3rlpy.search.state_model_checks import (
    LoggedReturns,
    returns_of_logged_actions,
    share_of_rewards,
)
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_bounds import ALL_UNTOLD, NOT_TRIED
from spin_d3rlpy.search.trust_figures import Search
from spin_d3rlpy.search.trust_switch import TrustSwitch
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.overfitting import OverfittingCheck
from spin_envs import ActionLayout

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
few_states = pytest.mark.usefixtures("few_states_in_tests_of_critics")
N = 3  # machines
FIRST, SECOND = Search(0.99, 0.02), Search(0.0, 0.02)


def run_machines(
    wear: np.ndarray, actions: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Choice 1 earns 1 and wears a machine, 0 maintains it; a worn one costs 4 a step."""
    rewards = (actions - 4.0 * (wear > 4.0)).sum(-1)
    worn = wear + rng.uniform(0.5, 1.0, wear.shape)
    return rewards, np.where(actions == 1, worn, wear - 3.0).clip(0.0, 8.0)


def machines(n: int = 60, length: int = 40, n_short: int = 0) -> DeviceReplayBuffer:
    """A log in which each machine is maintained in a third of the steps, by chance or if worn.

    All episodes end with their last step, some of them early.
    """
    rng = np.random.default_rng(0)
    wear, episodes = rng.uniform(0.0, 3.0, (n, N)), []
    observations, chosen, paid = [wear], [], []
    for _ in range(length):
        actions = np.where(wear > 3.0, rng.random(wear.shape) < 0.3, rng.random(wear.shape) < 0.8)
        rewards, wear = run_machines(wear, actions.astype(np.int64), rng)
        observations.append(wear)
        chosen.append(actions.astype(np.int64))
        paid.append(rewards)
    for i in range(n):
        end = length // 2 if i < n_short else length
        episodes.append(
            EpisodeArrays(
                f"episode {i}",
                np.array([o[i] for o in observations[: end + 1]], np.float32),
                np.array([a[i] for a in chosen[:end]]),
                np.array([r[i] for r in paid[:end]], np.float32),
                terminated=True,
            )
        )
    return DeviceReplayBuffer(stack_episodes(episodes, [len(e.rewards) for e in episodes], [2] * N))


def modeled(
    buffer: DeviceReplayBuffer,
    n_updates: int = 600,
    layout: ActionLayout | None = None,
    unseen: DeviceReplayBuffer | None = None,
) -> StateModel:
    torch.manual_seed(0)
    factory = VectorEncoderFactory(hidden_units=[64], use_layer_norm=True)
    model = StateModel(buffer.observation_size, factory, buffer.nvec, layout)
    learn(model, buffer, n_updates, Run(show_progress=False), held_out=unseen)
    return model


def test_a_policy_returns_in_the_model_what_it_returns() -> None:
    model, gamma, rng = modeled(machines()), 0.9, np.random.default_rng(1)
    x = rng.uniform(0.0, 3.0, (200, N)).astype(np.float32)
    policies: dict[str, Any] = {
        "careful": lambda wear: (wear < 2.5) * 1,
        "never maintains": lambda wear: (wear < 99.0) * 1,
    }
    found = {}
    for name, act in policies.items():
        wear, total = x.astype(np.float64), np.zeros(len(x))
        for step in range(32):
            rewards, wear = run_machines(wear, act(wear), rng)
            total += gamma**step * rewards
        of_model = model.play(act, torch.from_numpy(x), torch.full((200,), 32), gamma).returns
        found[name] = total.mean(), float(of_model.mean())
    (careful, of_careful), (reckless, of_reckless) = found.values()
    assert of_careful == pytest.approx(careful, abs=4.0)
    assert reckless < careful - 20.0
    assert of_reckless < of_careful - 10.0  # such wear is rare in the data


def test_it_tells_which_of_several_slots_that_are_alike_a_choice_moves() -> None:
    columns = tuple((i,) for i in range(N))
    model = modeled(machines(), layout=ActionLayout(shared_choices=True, slot_columns=columns))
    seen: list[torch.Tensor] = []

    def act(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return 1 - torch.eye(N).long()  # in each row another machine is maintained

    model.play(act, torch.full((N, N), 3.5), torch.full((N,), 2), 0.9)
    change = seen[1] - seen[0]
    maintained = torch.eye(N).bool()
    assert (change[maintained] < -1.5).all()  # 3 in truth
    assert (change[~maintained] > 0.3).all()  # 0.75


def test_states_stay_within_the_data() -> None:
    model = modeled(machines(), 100)
    seen: list[torch.Tensor] = []

    def act(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return torch.ones(len(x), N).long()

    model.play(act, torch.full((4, N), 100.0), torch.full((4,), 32), 0.9)
    assert (torch.stack(seen[1:]) <= model.highest).all()
    assert model.highest.max() <= 8.0


def within(returns: torch.Tensor) -> Played:
    """What a policy does that stays where the data have been."""
    return Played(returns, torch.zeros_like(returns))


def test_it_tells_whether_the_data_have_been_where_a_policy_leads() -> None:
    model, start = modeled(machines()), torch.full((4, N), 2.0)
    n_steps = torch.full((4,), 32)
    careful = model.play(lambda wear: (wear < 2.5) * 1, start, n_steps, 0.9)
    reckless = model.play(lambda wear: torch.ones_like(wear, dtype=torch.long), start, n_steps, 0.9)
    assert (careful.beyond < 0.05).all()
    assert (reckless.beyond > 0.5).all()  # the log maintains what is worn


def test_chances_between_two_values_are_not_beyond_them() -> None:
    """A lamp is on in one step of 300, and the model says 0.1 of it where it may be."""
    rng, n, length, episodes = np.random.default_rng(1), 200, 40, []
    for i in range(n):
        actions = np.stack([rng.random(length) < 0.03, rng.random(length) < 0.5], 1).astype(int)
        is_on = np.concatenate([[False], (actions[:, 0] == 1) & (rng.random(length) < 0.1)])
        states = np.stack([is_on, rng.normal(size=length + 1)], 1).astype(np.float32)
        rewards = rng.normal(size=length).astype(np.float32)
        episodes.append(EpisodeArrays(f"episode {i}", states, actions, rewards, terminated=False))
    buffer = DeviceReplayBuffer(stack_episodes(episodes, [length] * n, [2, 2]))
    assert 0.0 < buffer.observations[:, 0].mean() < state_model.RARE_SHARE
    model, seen = modeled(buffer), []

    def act(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return torch.tensor([1, 0]).repeat(len(x), 1)

    played = model.play(act, torch.zeros(50, 2), torch.full((50,), 10), 1.0)
    assert float(torch.stack(seen)[1:, :, 0].mean()) > 0.02
    assert float(played.beyond.max()) == 0.0


def test_what_is_beyond_counts_for_the_steps_that_a_policy_acts_for() -> None:
    model = modeled(machines())
    x, worn = torch.full((2, N), 1.0), lambda x: torch.ones(len(x), N).long()
    first, both = (model.play(worn, x, torch.tensor([1, n]), 0.9).beyond for n in (1, 32))
    assert first.tolist() == [0.0, 0.0]
    assert both[0] == 0.0 < 0.5 < both[1]


def test_what_is_rare_is_a_hundredth_of_the_data_or_less() -> None:
    """The model may be beyond it for want of precision."""
    buffer = machines()
    model = modeled(buffer, 1)
    x = buffer.observations_at(buffer.observation_index)
    deviation = x.std(0)
    for bound, share in zip(model.usual, (0.005, 0.995), strict=True):
        least = x.quantile(share, dim=0)
        outside = bound - least if share > 0.5 else least - bound
        assert torch.allclose(outside, 0.1 * deviation, rtol=0.3)


def test_a_number_that_never_varied_is_as_usual() -> None:
    model = modeled(machines(), 100)
    model.usual.zero_()
    model.lowest.zero_()
    model.highest.zero_()
    played = model.play(lambda x: torch.ones(4, N).long(), torch.zeros(4, N), torch.ones(4), 0.9)
    assert (played.beyond == 0.0).all()


@functools.cache
def run_with_a_model() -> SPINIDQL:
    """Returns an algorithm that learned what follows, and little else; tests take copies."""
    algo = algorithm(state_model_updates=200, batch_size=32)
    algo.config.policy.pretraining.max_updates = 5
    algo.fit(machines(100), n_steps=2, n_steps_per_epoch=2, **QUIET)
    return algo


@few_states
def test_a_model_that_does_not_tell_held_out_rewards_is_not_believed() -> None:
    training, held_out = machines(100).split(0.2)
    model = modeled(training)
    assert 0.5 < share_of_rewards(model, held_out) <= 1.0
    by_chance = held_out.with_rewards(torch.randn(held_out.transition_count))
    assert share_of_rewards(model, by_chance) < 0.0

    algo = copy.deepcopy(run_with_a_model())
    assert algo.trust is not None
    assert algo.trust.has_model
    unseen = algo._held_out
    assert unseen is not None
    assert algo.impl is not None
    assert algo.impl.state_model is not None
    told = share_of_rewards(algo.impl.state_model, unseen, algo._transform)
    assert algo.trust.untold == pytest.approx(1.0 - told)
    n_steps, returns = unseen.transition_count / unseen.size(), unseen.returns()
    more = float(returns.max() - returns.mean())
    assert algo.trust.room == pytest.approx(more / n_steps)
    algo._held_out = unseen.with_rewards(torch.randn(unseen.transition_count))
    algo.test_critics()
    assert (algo.trust.has_model, algo.trust.is_sequential) == (False, True)
    assert (algo.trust.stays, algo.trust.is_trap) == standstill(machines(100)) == (0.0, False)
    rows = torch.arange(unseen.transition_count + unseen.size())
    algo.hold_out(unseen.with_observations(torch.zeros_like(unseen.observations_at(rows))))
    algo.test_critics()
    assert (algo.trust.stays, algo.trust.is_trap) == (1.0, False)


@few_states
def test_no_search_acts_by_a_model_that_returns_more_for_logged_actions_than_was_logged() -> None:
    """As of goods that arrive later: it found a gain by a search that loses."""
    algo = copy.deepcopy(run_with_a_model())
    unseen, impl = algo._held_out, algo.impl
    assert unseen is not None
    assert impl is not None
    model = impl.state_model
    assert model is not None
    starts, n_steps = model.starts(unseen, torch.arange(unseen.transition_count), 0.0)
    shift = 0.5 * unseen.rewards.std()
    for less, expected in ((-shift, False), (0.0, False), (shift, True)):
        paid = unseen.with_rewards(unseen.rewards - less)
        transform = algo._transform
        logged = returns_of_logged_actions(model, paid, starts, n_steps, 0.99, transform)
        assert logged.are_optimistic is expected
        algo._held_out = paid
        algo.test_critics()
        assert algo.trust is not None
        assert algo.trust.has_model
        assert (algo.trust.untold == ALL_UNTOLD) is expected

    misled = dataclasses.replace(tried(), spread=4.0, untold=ALL_UNTOLD)
    none = with_next(with_next(misled, 399.0, 401.0), 299.0, 301.0)
    assert none.has_failed == (True, True)
    assert none.acts_by == "imitation"
    assert "this model returns more than was logged for logged actions, too" in str(none)
    assert none.with_imitation(torch.tensor([9.0, 9.1])).acts_by == "samples"


@few_states
def test_a_model_that_tells_what_logged_actions_return_foresees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paid = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert LoggedReturns(paid + 5.0, paid).share_told == pytest.approx(1.0)
    assert LoggedReturns(torch.full((4,), 3.0), paid).share_told == pytest.approx(0.0)
    assert LoggedReturns(2.0 - paid, paid).share_told == pytest.approx(-3.0)
    assert LoggedReturns(paid, torch.ones(4)).share_told < 0.0  # nothing there to tell

    algo = copy.deepcopy(run_with_a_model())
    for told, foresees in ((0.69, False), (0.71, True)):
        monkeypatch.setattr(LoggedReturns, "share_told", told)
        algo.test_critics()
        assert algo.trust is not None
        assert algo.trust.foresees is foresees
        assert algo.trust.untold < 1.0
        assert not algo.trust.is_mixed
    algo._persistence = 0.5  # of several policies
    algo.test_critics()
    assert algo.trust is not None
    assert algo.trust.is_mixed


@few_states
def test_a_log_of_several_policies_is_told_by_its_returns() -> None:
    algo, buffer = copy.deepcopy(run_with_a_model()), machines()
    episodes = torch.arange(buffer.size()).repeat_interleave(buffer.episode_starts.diff())
    better = buffer.with_rewards(buffer.rewards + 9.0 * (episodes % 2))  # every other one
    for log, is_mixed in ((better, True), (buffer, False)):
        algo.hold_out(log)
        algo.test_critics()
        assert algo.trust is not None
        assert algo.trust.is_mixed is is_mixed
    algo.hold_out(better)
    algo.hold_out(machines(length=1))  # where it cannot be told
    assert algo._persistence == 0.0


def test_a_model_that_learns_noise_by_heart_drops_out() -> None:
    buffer = machines(40)
    noise = 6.0 * torch.randn(buffer.transition_count, generator=torch.Generator().manual_seed(0))
    noisy, (_, true) = buffer.with_rewards(buffer.rewards + noise), buffer.split(0.5)
    training, held_out = noisy.split(0.5)
    told = []
    for unseen in (None, held_out):
        model = modeled(training, unseen=unseen)
        told.append(share_of_rewards(model, true.with_rewards(true.rewards)))
        assert model.network.dropout.p == 0.0
    by_heart, dropped_out = told
    assert by_heart < 0.0
    assert dropped_out > 0.2


def tried(*gains: float, samples: float = 0.0) -> Trust:
    """Two searches that are confirmed, and what they return in the model more than imitation."""
    trust = Trust((FIRST, SECOND), (1.0, 0.9), (1.0, 0.9), (0.01, 0.01), 100, spread=1.0)
    trust = trust.with_imitation(torch.tensor([samples - 0.1, samples + 0.1]))
    for gain in gains:
        trust = with_next(trust, gain - 0.1, gain + 0.1)
    return trust


def with_next(trust: Trust, *gains: float) -> Trust:
    """Adds what the next search to be tried gains in the model's states."""
    number = trust.to_try()
    assert number is not None
    return trust.with_search(number, torch.tensor(gains))


def test_a_search_that_gains_nothing_in_the_model_does_not_act() -> None:
    assert (tried().best, tried().acts_by, tried().to_try()) == (FIRST, "search", 0)
    gained = tried(2.0)
    assert (gained.best, gained.acts_by, gained.to_try()) == (FIRST, "search", 1)
    assert "in a model of states it returns +2 +- 0.07 more than imitation" in str(gained)
    other = tried(-2.0)
    assert (other.best, other.acts_by, other.to_try()) == (SECOND, "search", 1)
    assert other.has_failed == (True, False)
    assert tried(0.05).has_failed == (True, False)  # may be nothing
    none = tried(-2.0, -1.0)
    assert (none.acts_by, none.has_failed) == ("imitation", (True, True))
    assert tried(-2.0, -1.0, samples=0.5).acts_by == "samples"
    assert tried(-2.0, -1.0, samples=0.05).acts_by == "imitation"
    large = dataclasses.replace(tried(), promised=(1.3, 1.2))
    assert large.acts_by == "search"
    assert with_next(large, -1.0, -1.1).best == SECOND
    assert tried(math.nan).has_failed == (True, False)


def test_what_the_model_does_not_tell_of_rewards_it_can_be_wrong_by() -> None:
    """Where it tells half of them, three standard errors have to be six."""
    untold = dataclasses.replace(tried(), spread=4.0, untold=0.5)
    assert with_next(untold, 0.6, 0.8).best == FIRST
    less_sure = with_next(untold, 0.5, 0.9)
    assert less_sure.has_failed == (True, False)
    none = with_next(less_sure, 0.4, 0.8)
    assert none.acts_by == "imitation"
    assert "+0.7 +- 0.1 more than imitation (expected 0.85, as this model tells 50% of" in str(none)
    # Or the gain is half of what returns differ by.
    assert with_next(untold, 1.5, 2.9).best == FIRST
    assert with_next(untold, 1.2, 2.6).has_failed == (True, False)
    told = dataclasses.replace(untold, untold=0.0)
    assert with_next(told, 0.5, 0.9).best == FIRST
    nothing_told = dataclasses.replace(untold, untold=1.5)
    assert with_next(nothing_told, 0.6, 0.8).has_failed == (True, False)
    assert with_next(nothing_told, -0.9, -0.7).has_failed == (True, False)


@pytest.mark.parametrize(
    ("share", "error", "change", "gain", "acts"),
    [
        (0.76, 1e-4, 1.2, 0.3, True),
        (0.74, 1e-4, 1.2, 0.3, False),  # critics confirm too little
        (0.74, 1e-3, 1.2, 0.3, True),  # or not
        (0.76, 1e-4, 1.3, 0.3, False),  # it is bold
        (0.76, 1e-4, 1.2, 0.2, False),  # the model is not sure
    ],
)
def test_critics_may_confirm_less_of_a_mild_search_that_gains_in_the_model(
    share: float, error: float, change: float, gain: float, acts: bool
) -> None:
    """Of a gain that is small against what returns differ by, as a city's signals have them."""
    figures = (0.03, 0.03), (1e-4, 0.03 * share), (1e-3, error)
    searches = Search(0.99, 0.1), SECOND
    trust = Trust(searches, *figures, 100, spread=1.0, changes=(change, change))
    trust = trust.with_imitation(torch.zeros(2))
    assert trust.acts_by == "imitation"
    is_asked = 0.03 * share + 2.0 * error > 0.75 * 0.03 and change < 1.25
    assert trust.to_try() == (1 if is_asked else None)
    tried_there = trust.with_search(1, torch.tensor([gain - 0.1, gain + 0.1]))
    assert (tried_there.acts_by == "search") is acts
    assert ("changes 1.20 times as many slots as samples do" in str(tried_there)) is acts


def test_a_gain_that_is_large_in_the_model_acts_though_critics_confirm_a_part() -> None:
    """They confirm a third and 30 %: each doubts more of a gain than it confirms."""
    figures = (3.0, 2.0), (1.0, 0.6), (0.1, 0.1)
    critics = Trust((FIRST, SECOND), *figures, 100, spread=4.0)
    assert (critics.acts_by, critics.to_try()) == ("imitation", None)
    asked = critics.with_imitation(torch.zeros(2))
    assert (asked.acts_by, asked.to_try()) == ("imitation", 1)
    large = asked.with_search(0, torch.tensor([2.9, 3.1]))
    assert (large.acts_by, large.best, large.to_try()) == ("search", FIRST, 1)
    assert "75% of the standard deviation of returns" in str(large)
    assert asked.with_search(0, torch.tensor([1.6, 1.7])).acts_by == "search"
    assert asked.with_search(0, torch.tensor([1.5, 1.6])).acts_by == "imitation"
    unsure = dataclasses.replace(asked, standard_errors=(0.6, 0.6))
    assert unsure.to_try() is None


@pytest.mark.parametrize("confirmed", [(1.0, 0.6), (3.0, 2.0)])  # little, or all
def test_what_is_gained_where_the_data_have_not_been_is_not_sure(
    confirmed: tuple[float, float],
) -> None:
    critics = Trust((FIRST, SECOND), (3.0, 2.0), confirmed, (0.1, 0.1), 100, spread=4.0)
    asked, gains = critics.with_imitation(torch.zeros(2)), torch.tensor([2.9, 3.1])
    within = asked.with_search(0, gains, beyond=0.09)
    assert (within.acts_by, within.best) == ("search", FIRST)
    beyond = asked.with_search(0, gains, beyond=0.11)
    assert (beyond.acts_by, beyond.to_try()) == (
        "search" if confirmed[0] == 3.0 else "imitation",
        1,
    )
    assert beyond.has_failed == (True, False)
    both = beyond.with_search(1, gains, beyond=0.5)
    assert (both.acts_by, both.to_try()) == ("imitation", None)
    assert "% of the numbers of the states that it leads to are beyond" in str(both)
    switch = TrustSwitch((FIRST, SECOND))
    switch.trust = both
    assert switch.trust == both


def test_samples_imitate_where_most_likely_actions_lead_where_the_data_have_not_been() -> None:
    """Of them the model knows nothing either: reservoirs lose half as much again."""
    worse = tried(-2.0, -1.0, samples=-3.0)  # samples, and all searches
    gains = torch.tensor([-3.1, -2.9])
    assert worse.acts_by == "imitation"
    within = worse.with_imitation(gains, likeliest_beyond=0.04)
    assert within.acts_by == "imitation"
    assert "samples imitate" not in str(within)
    beyond = worse.with_imitation(gains, likeliest_beyond=0.06)
    assert beyond.acts_by == "samples"
    assert "samples imitate, as 6% of the numbers of the states" in str(beyond)
    searches = tried(2.0).with_imitation(gains, likeliest_beyond=0.06)
    assert searches.acts_by == "search"
    assert "samples imitate" not in str(searches)
    switch = TrustSwitch((FIRST, SECOND))
    switch.trust = beyond
    assert switch.trust == beyond


@few_states
@pytest.mark.parametrize("likeliest", [0, 1])
def test_it_is_measured_where_most_likely_actions_lead(likeliest: int) -> None:
    """The log maintains what is worn, as one of two actions does."""
    algo = copy.deepcopy(run_with_a_model())
    impl = algo.impl
    assert impl is not None
    impl._likeliest = lambda x, rule: torch.full((len(x), N), likeliest)  # type: ignore[method-assign]
    algo.test_critics()
    assert algo.trust is not None
    assert (algo.trust.likeliest_beyond > 0.3) is (likeliest == 1)


def test_the_model_alone_decides_for_a_shorter_discount_only_if_critics_consent() -> None:
    """What comes later it would have to know alone; by the first discount critics know it, too."""
    figures = (3.0, 2.0), (1.0, 0.6), (0.1, 0.1)
    asked = Trust((FIRST, SECOND), *figures, 100, spread=4.0).with_imitation(torch.zeros(2))
    alone = asked.with_search(1, torch.tensor([3.9, 4.1]))
    assert (alone.acts_by, alone.best, alone.to_try()) == ("search", SECOND, 0)
    level = alone.with_search(0, torch.tensor([3.65, 3.95]))  # +- 0.11: less by 0.2
    assert (level.acts_by, level.best) == ("search", FIRST)
    better = alone.with_search(0, torch.tensor([3.6, 3.9]))  # by 0.25
    assert (better.acts_by, better.best) == ("search", SECOND)
    # Critics have to confirm half of what they confirm of the first discount.
    for other, otherwise in ((better, "search"), (alone, "imitation")):
        assert dataclasses.replace(other, confirmed=(1.0, 0.51)).best == SECOND
        refused = dataclasses.replace(other, confirmed=(1.0, 0.49))
        assert (refused.acts_by, refused.best) == (otherwise, FIRST)
    none_known = dataclasses.replace(alone, confirmed=(-1.0, 0.6))
    assert none_known.acts_by == "imitation"
    # Where that gains little the shorter one stands alone.
    little = alone.with_search(0, torch.tensor([1.45, 1.65]))
    assert (little.acts_by, little.best) == ("search", SECOND)
    little = dataclasses.replace(asked, confirmed=(1.0, 0.03))  # less than 1 % of it
    assert little.to_try() == 0
    bold = Trust((FIRST._replace(action_flexibility=0.5), SECOND), *figures, 100, spread=4.0)
    assert bold.with_imitation(torch.zeros(2)).to_try() == 0


def test_what_the_model_alone_finds_large_is_the_mildest_search() -> None:
    """As of goods that arrive later, where the milder search lost and the bolder one acted."""
    ways = Search(0.99, 0.02), Search(0.99, 0.1)
    critics = Trust(ways, (3.0, 2.9), (1.0, 0.9), (0.1, 0.1), 100, spread=4.0)
    asked = critics.with_imitation(torch.zeros(2))
    assert asked.to_try() == 1
    # Surely a gain, and 40 % of the spread: not surely 40 % of it.
    assert asked.with_search(1, torch.tensor([1.2, 2.1])).best == ways[1]
    assert asked.with_search(1, torch.tensor([1.1, 2.0])).acts_by == "imitation"
    lost = asked.with_search(1, torch.tensor([-0.1, 0.1]))
    assert (lost.acts_by, lost.to_try()) == ("imitation", None)
    assert lost.with_search(0, torch.tensor([9.0, 9.1])).acts_by == "imitation"


def test_any_search_may_be_large_in_a_model_of_afterstates() -> None:
    """Critics find that one action, and then those of the log, gain nothing."""
    critics = Trust((FIRST, SECOND), (3.0, -0.1), (-1.0, -0.2), (0.1, 0.1), 100, spread=4.0)
    modeled = critics.with_imitation(torch.zeros(2))
    assert (modeled.acts_by, modeled.to_try()) == ("imitation", None)
    foreseen = dataclasses.replace(modeled, foresees=True)
    assert foreseen.to_try() == 1  # the best one by each discount, the best first
    large = with_next(foreseen, 2.9, 3.1)
    assert (large.acts_by, large.best, large.to_try()) == ("search", SECOND, 0)
    less = with_next(foreseen, 0.18, 0.22)  # than half of the spread, and surely more than nothing
    assert (less.acts_by, less.best) == ("search", SECOND)
    assert with_next(foreseen, -0.1, 0.3).acts_by == "imitation"
    # By a model of its own, next to critics of actions, 40 % of the spread.
    other = dataclasses.replace(foreseen, untold=0.01)
    refused = with_next(other, 1.58, 1.6)
    assert refused.acts_by == "imitation"
    assert "40% of the standard deviation of returns (expected 40% where" in str(refused)
    assert with_next(other, 1.6, 1.62).acts_by == "search"


def test_a_model_of_states_knows_what_follows() -> None:
    """Critics confirm 30 % by the first discount: without a model they do not."""
    trust = Trust((FIRST, SECOND), (1.0, 0.06), (0.3, 0.06), (0.001, 0.001), 100, spread=1.0)
    assert (trust.are_judged, trust.acts_by) == ((True, False), "imitation")
    modeled = trust.with_imitation(torch.zeros(2))
    assert (modeled.best, modeled.acts_by, modeled.to_try()) == (SECOND, "search", 1)
    assert with_next(modeled, 1.0, 1.1).acts_by == "search"
    assert with_next(modeled, -1.0, 1.1).acts_by == "imitation"


def test_the_search_that_gains_most_in_the_model_acts() -> None:
    one = tried(2.0)
    assert one.to_try() == 1
    better = one.with_search(1, torch.tensor([4.9, 5.1]))
    assert (better.best, better.to_try()) == (SECOND, None)
    worse = one.with_search(1, torch.tensor([0.9, 1.1]))
    assert worse.best == FIRST
    level = one.with_search(1, torch.tensor([1.87, 2.07]))  # less by half a standard error
    assert level.best == SECOND  # which looks less far ahead
    assert one.with_search(1, torch.tensor([-1.0, -1.1])).best == FIRST


def test_the_model_decides_where_critics_leave_it_open() -> None:
    """Others confirm 82 %, by 3 %, where 85 % is expected; or all of what imitation gains, too."""
    base, confirmed = dataclasses.replace(tried(), spread=20.0), (0.82, 0.1)
    near = dataclasses.replace(base, confirmed=confirmed, standard_errors=(0.03, 0.03))
    for trust in (near, dataclasses.replace(base, likeliest_gain=1.005)):
        assert (trust.acts_by, trust.to_try()) == ("imitation", 0)
        assert with_next(trust, 1.9, 2.1).acts_by == "search"
        assert with_next(trust, -2.1, -1.9).acts_by == "imitation"
    # Others agree, and states differ so much that it may be no gain, or too small a one.
    noisy = dataclasses.replace(base, standard_errors=(0.6, 0.6), spread=30.0)
    for trust in (noisy, dataclasses.replace(noisy, spread=105.0)):
        assert (trust.acts_by, trust.to_try()) == ("imitation", 0)
        assert with_next(trust, 1.9, 2.1).acts_by == "search"
        assert with_next(trust, -0.1, 0.1).acts_by == "imitation"
    bold: dict[str, Any] = {"confirmed": confirmed, "changes": (2.0, 2.0)}
    assert dataclasses.replace(noisy, **bold).to_try() is None  # nor do others agree
    clear = dataclasses.replace(base, **bold)  # 82 % by 1 %
    less = dataclasses.replace(base, likeliest_gain=1.1)
    for trust in (clear, less):  # the same gain, a tenth of the spread, does not decide
        assert trust.acts_by == "imitation"
        assert with_next(trust, 1.9, 2.1).acts_by == "imitation"


def test_what_critics_leave_open_of_a_shorter_discount_needs_their_consent() -> None:
    """As of life: others confirm a third of what they confirm by `gamma`, and imitation as much."""
    figures = (7.3, 1.3), (3.6, 1.3), (0.6, 0.5)
    trust = Trust((FIRST, SECOND), *figures, 300, spread=55.0, is_sequential=True)
    trust = dataclasses.replace(trust.with_imitation(torch.zeros(2)), likeliest_gain=1.8)
    found = trust.with_search(1, torch.tensor([10.0, 18.0]))
    assert (found.are_confirmed, found.acts_by) == ((False, False), "imitation")
    for other in (
        dataclasses.replace(found, confirmed=(2.5, 1.3)),  # half of it
        dataclasses.replace(found, foresees=True),
        dataclasses.replace(found, tells_ends=True),
        dataclasses.replace(found, likeliest_gain=1.2),  # nothing is left open
    ):
        assert (other.are_confirmed, other.acts_by) == ((False, True), "search")


def test_nothing_is_open_in_a_log_of_several_policies() -> None:
    """As of humanoid-stand's mixed data: searches returned 81 and 172, imitation 341 and 356."""
    for promised, confirmed, error, gains in (
        (1.28, 0.857, 0.09, (1.5, 3.1)),  # 67 % (+- 7) of a mild search
        (0.69, 0.537, 0.069, (2.4, 4.0)),  # 78 % (+- 10)
    ):
        figures = (promised,), (confirmed,), (error,)
        trust = Trust((Search(0.99, 0.1),), *figures, 238, spread=22.6, is_sequential=True)
        trust = dataclasses.replace(trust.with_imitation(torch.zeros(2)), changes=(1.2,))
        assert with_next(trust, *gains).acts_by == "search"
        assert with_next(dataclasses.replace(trust, persistence=0.49), *gains).acts_by == "search"
        mixed = dataclasses.replace(trust, persistence=0.5)
        left_alone = with_next(mixed, *gains)
        assert left_alone.acts_by == "imitation"
        assert "0.50, expected less than 0.5), so the log may be of several" in str(left_alone)
        assert "of several policies" not in str(with_next(mixed, -1.0, 1.0))  # fails in any log
        clear = dataclasses.replace(mixed, confirmed=(0.86 * promised,))
        assert with_next(clear, *gains).acts_by == "search"
        afterstates = dataclasses.replace(mixed, foresees=True)
        assert with_next(afterstates, *gains).acts_by == "search"
        told = dataclasses.replace(mixed, foresees=True, untold=0.01)
        assert with_next(told, *gains).acts_by == "imitation"


def test_a_confirmed_search_of_little_yields_to_one_that_the_model_surely_prefers() -> None:
    """As of dams: others confirm all of little by discount 0, and half of much by `gamma`."""
    long, short = Search(0.99, 0.1), Search(0.0, 0.1)
    figures = (4.0, 0.6), (2.0, 0.6), (0.02, 0.01)
    trust = Trust((long, short), *figures, 100, spread=20.0)
    trust = dataclasses.replace(trust.with_imitation(torch.zeros(2)), is_sequential=True)
    alone = trust.with_search(1, torch.tensor([3.0, 3.2]))
    assert (alone.acts_by, alone.best, alone.to_try()) == ("search", short, 0)
    both = alone.with_search(0, torch.tensor([9.0, 9.2]))
    assert (both.acts_by, both.best) == ("search", long)
    assert "and surely more than those by shorter discounts that are confirmed" in str(both)
    unsure = alone.with_search(0, torch.tensor([6.0, 12.2]))  # 9.1 +- 2.2
    assert unsure.best == long
    assert alone.with_search(0, torch.tensor([4.0, 14.2])).best == short  # 9.1 +- 3.6
    level = trust.with_search(1, torch.tensor([9.0, 9.1]))
    assert level.with_search(0, torch.tensor([9.1, 9.5])).best == short  # 9.3 +- 0.2
    consent = dataclasses.replace(both, confirmed=(1.1, 0.6))  # more than half of 1.1
    assert consent.best == short
    assert dataclasses.replace(alone, confirmed=(1.1, 0.6)).to_try() is None
    unknown = Trust((long, short), *figures, 100, spread=8.0)  # no model of states
    assert (unknown.acts_by, unknown.best) == ("search", short)


def test_what_the_model_told_is_kept_with_the_policy() -> None:
    switch, trust = TrustSwitch([FIRST, SECOND]), tried(-2.0, samples=0.5)
    switch.trust = trust
    assert switch.trust == trust
    assert trust.modeled_errors[1] == NOT_TRIED
    figures = (1.0, 0.9), (1.0, 0.9), (0.01, 0.01)
    switch.trust = other = Trust(
        (FIRST, SECOND),
        *figures,
        100,
        changes=(1.0, 2.0),
        is_sequential=True,
        untold=0.25,
        foresees=True,
    )
    assert switch.trust == other
    assert switch.trust is not None
    assert not switch.trust.has_model


def algorithm(**fields: Any) -> SPINIDQL:
    d3rlpy.seed(0)
    return SPINIDQL(recipe="tuned", find_own_columns=False, short_gammas=[0.0], **fields)


def worn_out(n_updates: int, **fields: Any) -> Any:
    """Returns an algorithm that was trained on machines, with a model of states or without."""
    algo = algorithm(
        state_model_updates=n_updates, overfitting_dropout=0.0, batch_size=128, **fields
    )
    algo.config.policy.pretraining.max_updates = 150
    algo.fit(machines(200), n_steps=400, n_steps_per_epoch=400, **QUIET)
    trust = algo.trust
    assert trust is not None
    assert trust.has_model == (n_updates > 0)
    return algo


@pytest.mark.slow
def test_a_search_that_wears_machines_out_does_not_act() -> None:
    alone, modeled = (worn_out(n, return_bins=0).trust for n in (0, 400))
    # Critics of means do not see it. Without a model it is refused because it is bold.
    as_if_mild = dataclasses.replace(alone, changes=(0.0,) * len(alone.searches))
    assert (as_if_mild.acts_by, alone.acts_by) == ("search", "imitation")
    assert any(modeled.has_failed)
    assert modeled.acts_by != "search" or modeled.best != as_if_mild.best


@pytest.mark.slow
def test_critics_of_distributions_do_not_wear_machines_out() -> None:
    algo, returned = worn_out(400), dict[str, float]()
    for search in ("auto", "never"):
        algo.config.search, rng = search, np.random.default_rng(1)
        wear, total = rng.uniform(0.0, 3.0, (100, N)), np.zeros(100)
        for _ in range(40):
            rewards, wear = run_machines(wear, algo.predict(wear.astype(np.float32)), rng)
            total += rewards
        returned[search] = float(total.mean())
    assert algo.trust.acts_by == "search"
    assert returned["auto"] > 0.95 * returned["never"], returned


@few_states
@pytest.mark.parametrize("stage", ["state_model", "training"])
def test_a_killed_run_resumes_with_the_same_model(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_model, "STEPS", 4)
    buffer = machines(40)

    def drop_out(check: OverfittingCheck, step: int, _progress: float) -> bool:
        check.is_to_drop_out |= step == 4
        return False

    def fitted(**kept: Any) -> Any:
        algo = algorithm(state_model_updates=12, batch_size=32)
        algo.config.policy.pretraining.max_updates = 6
        with mock.patch.object(OverfittingCheck, "after_step", drop_out):
            algo.fit(buffer, n_steps=8, n_steps_per_epoch=4, **kept, **QUIET)
        return algo

    def die_in_training(_algo: Any, _epoch: int, step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    kept: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_interval": 5}
    whole, calls, loss = fitted(), itertools.count(), StateModel.loss

    def die(*arguments: Any) -> torch.Tensor:
        if next(calls) == 9:
            raise KeyboardInterrupt
        return loss(*arguments)

    if stage == "state_model":
        with mock.patch.object(StateModel, "loss", die), pytest.raises(KeyboardInterrupt):
            fitted(**kept)
    else:
        with pytest.raises(KeyboardInterrupt):
            fitted(**kept, callback=die_in_training)
    again = fitted(**kept, resume=True)
    assert again.trust == whole.trust
    assert again.trust.has_model
    networks, of_whole = (a.impl.modules.get_torch_modules() for a in (again, whole))
    for name in ("state_model", "q_funcs"):
        for one, other in zip(
            networks[name].parameters(), of_whole[name].parameters(), strict=True
        ):
            assert torch.equal(one, other)


@few_states
@pytest.mark.usefixtures("short_probes_of_states")
@pytest.mark.parametrize("reason", ["masks", "rules of states", "ends"])
def test_there_is_no_model_where_policies_cannot_be_tried(reason: str) -> None:
    buffer, fields = machines(20), {}
    if reason == "ends":
        buffer = machines(20, n_short=5)
    if reason == "rules of states":
        fields["rules"] = [may_work]
    if reason == "masks":
        episodes = [
            EpisodeArrays(
                f"episode {i}",
                buffer.observations_at(torch.arange(i * 41, (i + 1) * 41)).numpy(),
                buffer.actions[i * 40 : (i + 1) * 40].numpy(),
                buffer.rewards[i * 40 : (i + 1) * 40].numpy(),
                False,
                masks=pack(np.ones((41, N, 2), bool), [2] * N),
            )
            for i in range(20)
        ]
        buffer = DeviceReplayBuffer(
            stack_episodes(episodes, [len(e.rewards) for e in episodes], [2] * N)
        )
    algo = algorithm(state_model_updates=5, **fields)
    algo.config.policy.pretraining.max_updates = 5
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert algo.trust is not None
    assert not algo.trust.has_model


def may_work(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Every choice may be made, as far as the state tells."""
    return torch.ones(len(partial), N, 2, dtype=torch.bool, device=state.device)


def test_policies_start_where_episodes_do_and_anywhere_and_act_no_longer_than_these() -> None:
    buffer = machines(20)  # of 40 steps each
    model = StateModel(N, VectorEncoderFactory([8]), [2] * N)
    index = torch.randperm(buffer.transition_count)
    starts, n_steps = model.starts(buffer, index, 0.0)
    assert len(starts) == 16 * PARTS
    first, anywhere = starts[0::2], starts[1::2]
    assert sorted(first[:20].tolist()) == list(range(0, 800, 40))
    assert (first[20:] % 40 == 1).all()  # there are no more first ones
    assert anywhere.tolist() == [i for i in index.tolist() if i % 40 <= 20][:32]
    assert (n_steps == 40 - starts % 40).all()
    counts = [len(model.starts(buffer, index, n)[0]) // PARTS for n in (66.0, 200.0, 1e6)]
    assert counts == [16, 8, 6]
    long = machines(5, 100)
    starts, n_steps = model.starts(long, torch.randperm(500), 0.0)
    assert sorted(starts[:10:2].tolist()) == [0, 100, 200, 300, 400]
    assert (n_steps[0::2] == STEPS).all()  # nor does any other start near the limit
    assert ((n_steps[1::2] >= STEPS // 2) & (n_steps[1::2] <= STEPS)).all()
    assert (starts[1::2] % 100).max() > 60
    few = machines(1, 5)
    assert len(model.starts(few, torch.randperm(5), 0.0)[0]) == 6
    # Those who start late have less to be paid, which any model tells.
    starts, n_steps = model.starts_of_log(buffer, index)
    assert sorted(starts[:20].tolist()) == list(range(0, 800, 40))
    assert (starts[20:] % 40 <= 3).all()
    assert (n_steps == 40 - starts % 40).all()
    model.ends.fill_(True)
    for starts, n_steps in (model.starts(buffer, index, 0.0), model.starts_of_log(buffer, index)):
        assert starts.tolist() == index[:64].tolist()
        assert (n_steps == STEPS).all()


def test_a_policy_is_paid_for_the_steps_that_it_acts_for() -> None:
    model = modeled(machines(), 100)
    x, ones = torch.full((3, N), 1.0), lambda x: torch.ones(len(x), N).long()
    by_length = [model.play(ones, x, torch.full((3,), n), 0.9).returns[0] for n in (0, 1, 5)]
    assert by_length[0] == 0.0 < by_length[1] < by_length[2]
    mixed = model.play(ones, x, torch.tensor([0, 1, 5]), 0.9).returns
    assert torch.allclose(mixed, torch.stack(by_length))


@few_states
def test_without_a_search_the_best_candidate_is_tried() -> None:
    d3rlpy.seed(0)
    algo = FactoredIDQL(
        recipe="tuned",
        find_own_columns=False,
        search_sweeps=0,
        state_model_updates=50,
        batch_size=32,
    )
    algo.fit(machines(40), n_steps=20, n_steps_per_epoch=20, **QUIET)
    impl = algo.impl
    assert impl is not None
    x = torch.zeros(8, N)
    x[:, 0] = torch.linspace(0.0, 3.0, 8)
    searches = [Search(way.gamma, 0.02) for way in algo.config.searches]
    figures = (1.0,) * len(searches), (1.0,) * len(searches), (0.01,) * len(searches)
    trust = Trust(tuple(searches), *figures, 100, spread=1.0)
    gains = impl.compare_in_model(trust, x, torch.full((8,), 32))
    assert any(gains.has_failed) or gains.to_try() is None
    assert any(gain != 0.0 for gain in gains.modeled)


@functools.cache
def barely_trained() -> Any:
    """Returns an algorithm with a model of states, of which tests say what policies return."""
    d3rlpy.seed(0)
    algo = FactoredIDQL(
        recipe="tuned", find_own_columns=False, state_model_updates=50, batch_size=32
    )
    algo.fit(machines(40), n_steps=20, n_steps_per_epoch=20, **QUIET)
    return algo


def two_by_one_discount() -> Trust:
    """A bold search and a mild one by a discount, and another one; critics confirm all."""
    searches, gains = (Search(0.99, 0.02), Search(0.99, 0.1), Search(0.0, 0.1)), (1.0, 0.9, 0.8)
    return Trust(searches, gains, gains, (0.01,) * 3, 100, spread=1.0)


@few_states
def test_the_bolder_of_two_searches_is_tried_only_where_the_milder_gains_nothing() -> None:
    impl, trust = barely_trained().impl, two_by_one_discount()
    bold, mild, _ = trust.searches
    assert (trust.milder_than(0), trust.milder_than(1), trust.milder_than(2)) == (1, None, None)
    starts = torch.zeros(2, N), torch.full((2,), 32)
    nothing, little, much = torch.zeros(2), torch.tensor([2.0, 3.0]), torch.tensor([7.0, 8.0])
    tried = {mild: [little, nothing], bold: [nothing, much, nothing]}  # in this order, then `other`
    for best, of_searches in tried.items():
        returned = [nothing, nothing, *of_searches]  # of imitation and samples
        with mock.patch.object(impl.state_model, "play", side_effect=map(within, returned)):
            compared = impl.compare_in_model(trust, *starts)
        assert (compared.best, compared.acts_by) == (best, "search")
    returned = [nothing] * 5  # each search is tried once, also if all fail
    with mock.patch.object(impl.state_model, "play", side_effect=map(within, returned)):
        assert impl.compare_in_model(trust, *starts).acts_by == "imitation"
    unsure = dataclasses.replace(trust, confirmed=(1.0, 0.5, 0.8))
    assert unsure.milder_than(0) is None  # critics do not confirm it


@few_states
def test_where_the_model_foresees_the_bolder_search_acts_if_it_returns_more() -> None:
    impl = barely_trained().impl
    trust = dataclasses.replace(two_by_one_discount(), foresees=True)
    bold, mild, _ = trust.searches
    starts = torch.zeros(2, N), torch.full((2,), 32)
    of_mild, nothing = torch.tensor([8.0, 9.0]), torch.zeros(2)  # as imitation, samples and `other`
    # Also where critics like the milder one more, or confirm too little of both.
    milder = dataclasses.replace(trust, confirmed=(0.87, 0.9, 0.8))
    by_model = dataclasses.replace(trust, confirmed=(0.2, 0.3, 0.1))
    # By a standard error of the difference, state by state.
    for of_bold, best in (([8.5, 11.0], bold), ([7.6, 10.6], mild), ([8.0, 9.0], mild)):
        for one in (trust, milder, by_model):
            returned = [nothing, nothing, torch.tensor(of_bold), of_mild, nothing]
            with mock.patch.object(impl.state_model, "play", side_effect=map(within, returned)):
                compared = impl.compare_in_model(one, *starts)
            assert (compared.best, compared.acts_by) == (best, "search"), of_bold


@few_states
def test_more_states_are_looked_at_where_it_is_not_sure_that_a_gain_is_one() -> None:
    impl = barely_trained().impl
    trust = Trust((Search(0.0, 0.1),), (1.0,), (1.0,), (0.01,), 100, spread=1.0)
    starts, nothing = (torch.zeros(2 * PARTS, N), torch.full((2 * PARTS,), 32)), torch.zeros(2)
    for gains, looked_at, acts_by in (
        ([[1.0, 1.1]], 2, "search"),
        ([[-1.0, -1.1]], 2, "imitation"),
        ([[1.0, 3.0], [3.0, 3.0]], 4, "search"),  # at first by 2.8 standard errors
        ([[-1.0, 3.0], [-2.0, -4.0]], 4, "imitation"),
        ([[-1.0, 3.0]] * PARTS, 2 * PARTS, "imitation"),
    ):
        returned = [nothing, nothing]  # of samples and imitation
        for part, gain in enumerate(gains):
            returned += [torch.tensor(gain), *([nothing] if part > 0 else [])]
        with mock.patch.object(
            impl.state_model, "play", side_effect=map(within, returned)
        ) as asked:
            assert impl.compare_in_model(trust, *starts).acts_by == acts_by, gains
        seen = sum(len(call.args[1]) for call in asked.call_args_list)
        assert seen == 4 + looked_at + 2 * (len(gains) - 1), gains


def test_samples_that_surely_return_less_in_the_model_do_not_act() -> None:
    trust = Trust((FIRST,), (1.0,), (0.1,), (0.01,), 100, 0.0, 1.0, -0.5, 0.1)
    assert trust.acts_by == "samples"  # as the critics say
    assert trust.with_imitation(torch.tensor([-1.0, -1.1])).acts_by == "imitation"
    assert trust.with_imitation(torch.tensor([-1.0, 0.9])).acts_by == "samples"
    sure = dataclasses.replace(trust, likeliest_gain=0.5)
    assert sure.with_imitation(torch.tensor([1.0, 1.1])).acts_by == "samples"
    assert sure.with_imitation(torch.tensor([-1.0, -1.1])).acts_by == "imitation"
