"""The model of states where the task ends episodes: what ends them, and what their ends return."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import SPINIDQL
from spin_d3rlpy.algos.idql import algorithm
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.search.state_model import StateModel, learn
from spin_d3rlpy.search.state_model_checks import (
    can_foresee,
    can_tell_rewards,
    returns_of_logged_actions,
    share_of_rewards,
)
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from spin_d3rlpy.search.trust_switch import TrustSwitch
from spin_d3rlpy.training.loop import Run

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics", "short_probes_of_states")
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
BOLD, MILD, SHORT = Search(0.99, 0.02), Search(0.99, 0.1), Search(0.0, 0.1)
LENGTH = 40


def walk(
    at: np.ndarray, actions: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two choices push by -1, 0 or 1 each; beyond 3 is a crash, -20, beyond -3 the goal, 10."""
    at = at + 0.2 * (actions.sum(-1) - 2) + rng.normal(0.0, 0.05, at.shape)
    rewards = np.select([at > 3.0, at < -3.0], [-20.0, 10.0], 0.3 * at - 0.1 * (actions[:, 0] == 1))
    return at, rewards, np.abs(at) > 3.0


def walks(n: int = 400) -> DeviceReplayBuffer:
    """Uniform choices until an episode ends."""
    rng, episodes = np.random.default_rng(0), []
    for i in range(n):
        at, seen, chosen, paid = rng.uniform(-2.5, 2.5, 1), [], [], []
        for _ in range(LENGTH):
            actions = rng.integers(0, 3, (1, 2))
            seen.append(at)
            at, reward, is_over = walk(at, actions, rng)
            chosen.append(actions[0])
            paid.append(reward[0])
            if is_over[0]:
                break
        seen.append(at)
        arrays = np.array(seen, np.float32), np.array(chosen), np.array(paid, np.float32)
        episodes.append(EpisodeArrays(f"episode {i}", *arrays, terminated=bool(is_over[0])))
    return DeviceReplayBuffer(stack_episodes(episodes, [len(e.rewards) for e in episodes], [3, 3]))


def learned(buffer: DeviceReplayBuffer, is_apart: bool, n_updates: int) -> StateModel:
    torch.manual_seed(0)
    factory = VectorEncoderFactory(hidden_units=[64], use_layer_norm=True)
    model = StateModel(buffer.observation_size, factory, buffer.nvec)
    learn(model, buffer, n_updates, Run(show_progress=False), tells_last_apart=is_apart)
    return model


def always(actions: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return actions


def test_it_tells_crashes_from_goals() -> None:
    training, held_out = walks().split(0.2)
    model, blended = (learned(training, is_apart, 1200) for is_apart in (True, False))
    told, of_blended = share_of_rewards(model, held_out), share_of_rewards(blended, held_out)
    assert told > 0.9
    assert of_blended < 0.8  # a few large ends are most of what there is to tell
    others = training.rewards[training.terminals == 0.0]
    deviation = others.std(correction=0)
    torch.testing.assert_close(model.network.scale.std[-2], deviation, atol=0.02, rtol=0.05)

    gamma, n, rng = 0.95, 200, np.random.default_rng(1)
    x = rng.uniform(-1.5, 1.5, n).astype(np.float32)
    for choice in (0, 2):  # to the goal, and to the crash
        actions = np.full((n, 2), choice)
        at, total, goes_on = x.astype(np.float64), np.zeros(n), np.ones(n, bool)
        for step in range(LENGTH):
            at, rewards, is_over = walk(at, actions, rng)
            total += gamma**step * goes_on * rewards
            goes_on &= ~is_over
        assert not goes_on.any()
        chosen, n_steps = torch.from_numpy(actions), torch.full((n,), LENGTH)
        found = model.play(partial(always, chosen), torch.from_numpy(x)[:, None], n_steps, gamma)
        assert float(found.returns.mean()) == pytest.approx(
            total.mean(), abs=0.15 * abs(total.mean())
        )


def test_what_the_log_returned_counts_until_an_episode_ends() -> None:
    buffer = walks(50)
    model = learned(buffer, True, 1)
    starts = buffer.episode_starts[:-1]
    lengths = buffer.episode_starts.diff()
    logged = returns_of_logged_actions(model, buffer, starts, torch.full_like(starts, 64), 1.0)
    sums = torch.stack([part.sum() for part in buffer.rewards.split(lengths.tolist())])
    torch.testing.assert_close(logged.paid, sums, atol=1e-4, rtol=1e-4)


def test_where_all_other_steps_return_the_same_there_is_nothing_to_believe() -> None:
    """Only the end pays: the reward of the ends alone does not tell a good one."""
    buffer = walks(50)
    paid = torch.where(buffer.terminals.bool(), buffer.rewards, -0.1)
    constant = buffer.with_rewards(paid)
    assert (can_tell_rewards(buffer), can_tell_rewards(constant)) == (True, False)
    assert share_of_rewards(learned(constant, True, 1), constant) == 0.0


def fitted() -> SPINIDQL:
    d3rlpy.seed(0)
    algo = SPINIDQL(
        recipe="tuned",
        find_own_columns=False,
        short_gammas=[0.0],
        state_model_updates=20,
        batch_size=32,
        afterstates=False,
    )
    algo.config.policy.pretraining.max_updates = 5
    algo.fit(walks(60), n_steps=2, n_steps_per_epoch=2, **QUIET)
    return algo


def test_it_is_believed_if_it_tells_nearly_all_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = fitted()
    assert algo.impl is not None
    assert algo.impl.state_model is not None
    assert algo.impl.state_model.is_apart
    for told, is_believed in ((0.79, False), (0.81, True)):
        monkeypatch.setattr(algorithm, "share_of_rewards", lambda *_, told=told: told)
        monkeypatch.setattr(algorithm, "LEAST_TOLD_RETURNS", -1e9)  # as if it foresaw
        algo.test_critics()
        assert algo.trust is not None
        assert (algo.trust.has_model, algo.trust.tells_ends) == (is_believed, is_believed)
        assert not algo.trust.foresees  # it cannot tell when chance ends an episode


@pytest.mark.parametrize("terminated", [True, False])
def test_single_decisions_have_no_model(terminated: bool) -> None:
    rng = np.random.default_rng(0)
    episodes = [
        EpisodeArrays(
            f"episode {i}",
            rng.normal(size=(2, 2)).astype(np.float32),
            rng.integers(0, 3, (1, 2)),
            rng.normal(size=1).astype(np.float32),
            terminated=terminated,
        )
        for i in range(60)
    ]
    algo = SPINIDQL(recipe="tuned", find_own_columns=False, state_model_updates=20, batch_size=32)
    algo.config.policy.pretraining.max_updates = 5
    buffer = DeviceReplayBuffer(stack_episodes(episodes, [1] * 60, [3, 3]))
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert algo.impl is not None
    assert algo.impl.state_model is not None
    assert not algo.impl.state_model.is_learned
    no_probe = mock.Mock(side_effect=AssertionError)
    assert not can_foresee(no_probe, buffer)


def partly_confirmed(**fields: Any) -> Trust:
    """Critics confirm less of each search than is expected, but surely something."""
    figures = (3.0, 2.9, 2.8), (1.0, 0.9, 0.8), (0.1,) * 3
    trust = Trust((BOLD, MILD, SHORT), *figures, 100, spread=40.0, untold=0.01)
    return dataclasses.replace(trust.with_imitation(torch.zeros(2)), **fields)


def test_a_mild_search_acts_by_a_model_that_tells_ends_if_it_gains_a_little() -> None:
    asked = partly_confirmed(is_sequential=True, tells_ends=True)
    assert asked.to_try() == 1
    gained = asked.with_search(1, torch.tensor([2.0, 2.2]))  # 5 % of the spread
    assert (gained.acts_by, gained.best) == ("search", MILD)
    assert "5% of the standard deviation of returns (expected 5% where less is" in str(gained)
    assert asked.with_search(1, torch.tensor([1.8, 2.0])).acts_by == "imitation"
    assert asked.with_search(0, torch.tensor([20.0, 22.0])).acts_by == "imitation"  # it is bold
    other = dataclasses.replace(gained, tells_ends=False)
    assert other.acts_by == "imitation"  # which needs 40 %
    # Of critics it is enough that there surely is a gain, as of poles (0.8 % of the spread).
    least = dataclasses.replace(
        gained, confirmed=(1.0, 0.03, 0.8), standard_errors=(0.1, 0.01, 0.1)
    )
    assert (least.confirmed[1] < 0.01 * least.spread, least.acts_by) == (True, "search")
    unsure = dataclasses.replace(least, standard_errors=(0.1, 0.02, 0.1))
    assert unsure.acts_by == "imitation"
    switch = TrustSwitch([BOLD, MILD, SHORT])
    switch.trust = gained
    assert switch.trust == gained


def test_the_boldest_search_has_to_gain_more_where_the_task_ends_episodes() -> None:
    """As one of landers, which critics confirm by 96 %: it gains 20 % in the model, and crashes."""
    figures = (3.0, 0.1, 0.1), (2.9, 0.0, 0.0), (0.01,) * 3
    trust = Trust((BOLD, MILD, SHORT), *figures, 100, spread=10.0, untold=0.01)
    known = dataclasses.replace(trust.with_imitation(torch.zeros(2)), is_sequential=True)
    ends = dataclasses.replace(known, tells_ends=True)

    def tried(changes: float, gain: float) -> Trust:
        bold = dataclasses.replace(ends, changes=(changes,) * 3)
        return bold.with_search(0, torch.tensor([gain, gain + 0.1]))

    assert tried(1.9, 2.0).acts_by == tried(2.1, 4.2).acts_by == "search"
    assert tried(2.1, 2.0).acts_by == "imitation"
    assert tried(2.1, 2.0).has_failed == (True, False, False)


def test_a_bold_search_that_is_large_does_not_act_where_the_task_ends_episodes() -> None:
    """As of trucks, whose model found most by searches that touch."""
    figures = (3.0, 2.9, 2.8), (2.4, 1.0, 0.8), (0.01,) * 3
    trust = Trust((BOLD, MILD, SHORT), *figures, 100, spread=10.0, changes=(1.5,) * 3)
    known = dataclasses.replace(trust.with_imitation(torch.zeros(2)), is_sequential=True)
    assert known.are_large == (True, False, False)
    ends = dataclasses.replace(known, tells_ends=True)
    assert ends.are_large == (False, False, False)
    assert "and the task ends episodes or no model of states tells" in str(ends)
    mild = ends.with_search(1, torch.tensor([2.0, 2.1]))
    assert (mild.acts_by, mild.best) == ("search", MILD)
    assert "times as many slots" not in str(mild)
    few = dataclasses.replace(ends, changes=(1.2,) * 3)
    assert few.are_large == (True, False, False)
