"""Weights of trajectories, and transitions that reach to the end of their episode."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer

from spin_d3rlpy import SPINIQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import imitation_batch
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights, persistence

GAMMA = 0.9


def buffer_of(returns: list[float], lengths: list[int]) -> DeviceReplayBuffer:
    """Terminated episodes whose actions are their number and whose last step pays."""
    episodes = []
    for i, (value, length) in enumerate(zip(returns, lengths, strict=True)):
        rewards = np.full((length, 1), 0.25, np.float32)
        rewards[-1] = value - 0.25 * (length - 1)
        episodes.append(
            Episode(
                observations=np.full((length, 2), i, np.float32)
                + np.linspace(0, 0.5, length, dtype=np.float32)[:, None],
                actions=np.full((length, 1), i),
                rewards=rewards,
                terminated=True,
            )
        )
    replay = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
    return DeviceReplayBuffer.from_replay_buffer(replay, [len(returns)])


@pytest.fixture
def buffer() -> DeviceReplayBuffer:
    return buffer_of([0.0, 3.0, 4.0, 1.0], [2, 5, 1, 4])


def test_returns_are_sums_of_rewards(buffer: DeviceReplayBuffer) -> None:
    assert buffer.returns().tolist() == pytest.approx([0.0, 3.0, 4.0, 1.0])


def test_transitions_are_drawn_by_the_softmax_of_their_return(buffer: DeviceReplayBuffer) -> None:
    torch.manual_seed(0)
    weights = TrajectoryWeights(temperature=0.5, min_episodes=1.0)
    drawn = buffer.for_imitation(dataclasses.replace(weights, critics=True))
    batch: Any = drawn.sample_transition_batch(100_000)
    counts = batch.actions[:, 0].bincount(minlength=4) / len(batch.actions)
    p = np.exp(np.array([0.0, 0.75, 1.0, 0.25]) / 0.5) * [2, 5, 1, 4]  # a transition's, so x length
    np.testing.assert_allclose(counts, p / p.sum(), atol=0.005)
    # Within an episode all steps alike.
    steps = (2 * (batch.observations[batch.actions[:, 0] == 1][:, 0] - 1) * 4).round().long()
    np.testing.assert_allclose(steps.bincount() / len(steps), 0.2, atol=0.01)
    # Critics see all alike unless told otherwise.
    mixed = buffer.for_imitation(weights).sample_transition_batch(50_000)
    uniform = mixed.actions[:, 0].bincount(minlength=4) / 50_000
    np.testing.assert_allclose(uniform, np.array([2, 5, 1, 4]) / 12, atol=0.01)
    imitated = imitation_batch(mixed).actions[:, 0].bincount(minlength=4) / 50_000
    np.testing.assert_allclose(imitated, p / p.sum(), atol=0.01)


def test_few_trajectories_are_not_all_that_is_drawn() -> None:
    returns = torch.linspace(0, 1, 50).square()
    starts = torch.zeros(50, 1)
    greedy = TrajectoryWeights(temperature=0.001, min_episodes=1.0).compute(returns, starts)
    assert 1 / greedy.square().sum() == pytest.approx(1.0, abs=0.01)
    bounded = TrajectoryWeights(temperature=0.001, min_episodes=20.0).compute(returns, starts)
    assert 20.0 <= 1 / bounded.square().sum() < 22.0
    # As many as there are, if there are fewer.
    few = TrajectoryWeights(temperature=0.001, min_episodes=99.0).compute(returns, starts)
    assert 1 / few.square().sum() >= 49.5


def test_advantages_take_off_what_the_start_explains() -> None:
    torch.manual_seed(0)
    starts = torch.randn(400, 3)
    skill = torch.rand(400)
    returns = 10.0 * starts[:, 0] + 10.0 * skill
    weights = TrajectoryWeights(temperature=0.1, score="advantage", min_episodes=1.0)
    by_advantage = weights.compute(returns, starts)
    by_return = dataclasses.replace(weights, score="return").compute(returns, starts)
    # By return those are drawn that start well, by advantage those that do well from there.
    start, other_start = (float(p @ starts[:, 0].double()) for p in (by_advantage, by_return))
    assert start < 0.5 * other_start
    assert float(by_advantage @ skill.double()) > float(by_return @ skill.double()) + 0.1


def test_logs_of_single_decisions_are_weighted_by_their_rewards() -> None:
    torch.manual_seed(0)
    buffer = buffer_of([0.0, 1.0] * 50, [1] * 100)
    weights = TrajectoryWeights(temperature=0.5, min_episodes=1.0, critics=True)
    batch = buffer.for_imitation(weights).sample_transition_batch(50_000)
    share = float((batch.actions[:, 0] % 2).float().mean())
    assert share == pytest.approx(np.exp(2) / (1 + np.exp(2)), abs=0.01)


@pytest.mark.parametrize("score", ["return", "advantage"])
@pytest.mark.parametrize(
    ("returns", "lengths"),
    [([0.0, 0.0], [1, 1]), ([0.3], [3]), ([0.7] * 40, [7] * 40), ([0.0] * 5, [1, 2, 3, 4, 5])],
)
def test_episodes_that_are_equally_good_are_drawn_uniformly_with_one_warning(
    returns: list[float], lengths: list[int], score: Any
) -> None:
    torch.manual_seed(0)
    buffer = buffer_of(returns, lengths)
    weights = TrajectoryWeights(temperature=0.05, score=score, critics=True)
    with pytest.warns(UserWarning, match="cannot be weighted: .* All count alike") as warned:
        chosen = buffer.for_imitation(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.for_imitation(weights)
        chosen.for_imitation(weights)
    assert len(warned) == 1
    drawn: Any = chosen.sample_transition_batch(20_000)
    counts = drawn.actions[:, 0].bincount(minlength=len(returns)) / 20_000
    np.testing.assert_allclose(counts, np.array(lengths) / sum(lengths), atol=0.015)


def test_rounding_errors_of_sums_are_no_differences() -> None:
    """Each episode has the same ten rewards."""
    sums = torch.tensor([0.1, 1e-9] * 500_000).double().cumsum(0)
    returns = sums[9::10].diff()
    assert returns.max() > returns.min()
    weights = TrajectoryWeights(temperature=0.05).compute(returns, torch.zeros(len(returns), 1))
    assert torch.equal(weights, torch.full_like(weights, 1 / len(returns)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"temperature": 0.0}, "temperature"), ({"score": "length"}, "score")],
)
def test_bad_weights_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrajectoryWeights(**fields)  # type: ignore[arg-type]


def test_transitions_to_the_end_sum_up_what_follows(buffer: DeviceReplayBuffer) -> None:
    reaching = buffer.with_horizon(GAMMA)
    assert buffer.with_horizon(None) is buffer
    for episode in range(buffer.size()):
        first, last = buffer.episode_starts[episode], buffer.episode_starts[episode + 1]
        rewards = buffer.rewards[first:last]
        index = torch.arange(int(first), int(last))
        batch: Any = reaching.transitions(index)
        for t in range(len(rewards)):
            powers = GAMMA ** torch.arange(len(rewards) - t)
            assert batch.rewards[t, 0] == pytest.approx(float((powers * rewards[t:]).sum()))
            assert batch.intervals[t, 0] == len(rewards) - t
        end: Any = buffer.transitions(index[-1:].repeat(len(rewards)))
        assert torch.equal(batch.next_observations, end.next_observations)
        assert torch.equal(batch.terminals, end.terminals)
        one_step: Any = buffer.transitions(index)
        assert torch.equal(batch.observations, one_step.observations)
        assert torch.equal(batch.actions, one_step.actions)
    back = reaching.with_horizon(None).transitions(torch.arange(3))
    assert torch.equal(back.rewards, buffer.transitions(torch.arange(3)).rewards)


def test_selected_episodes_keep_their_weights(buffer: DeviceReplayBuffer) -> None:
    torch.manual_seed(0)
    weights = TrajectoryWeights(temperature=0.01, min_episodes=1.0, critics=True)
    chosen = buffer.for_imitation(weights).select([0, 2, 3])
    assert set(chosen.sample_transition_batch(100).actions[:, 0].tolist()) == {2}


def test_none_switches_a_recipes_weights_off() -> None:
    off = SPINIQL(recipe="tuned", trajectory_weights=None).config
    assert off.trajectory_weights == TrajectoryWeights()
    assert SPINIQL(recipe="tuned").config.trajectory_weights != TrajectoryWeights()


def halves_of(skill: float, luck: float, state: float, n: int = 500) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    starts = rng.normal(size=(n, 2))
    of_policy = skill * rng.normal(size=(n, 1)) + state * starts[:, :1]
    halves = of_policy + luck * rng.normal(size=(n, 2))
    return torch.from_numpy(halves), torch.from_numpy(starts)


def test_skill_persists_and_luck_does_not() -> None:
    assert persistence(*halves_of(skill=1.0, luck=0.3, state=0.0)) > 0.8
    assert abs(persistence(*halves_of(skill=0.0, luck=1.0, state=0.0))) < 0.15
    # What the start state explains is no skill.
    assert abs(persistence(*halves_of(skill=0.0, luck=0.3, state=1.0))) < 0.2
    _, starts = halves_of(1.0, 1.0, 1.0)
    assert np.isnan(persistence(torch.zeros(500, 2), starts))


@pytest.mark.parametrize("skill", [True, False])
def test_trajectories_are_weighted_where_skill_decides(skill: bool) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(60):
        level = i / 60 if skill else 0.5
        rewards = (level + 0.2 * rng.normal(size=(10, 1))).astype(np.float32)
        states = rng.normal(size=(10, 2)).astype(np.float32)
        actions = np.full((10, 1), i)
        episodes.append(Episode(states, actions, rewards, terminated=True))
    replay = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
    buffer = DeviceReplayBuffer.from_replay_buffer(replay, [60])
    weights = TrajectoryWeights(temperature=0.05, least_persistence=0.3)
    drawn = buffer.for_imitation(weights).sample_observations_and_actions(2_000)[1]
    share = float((drawn[:, 0] >= 40).float().mean())
    assert share > 0.7 if skill else share == pytest.approx(1 / 3, abs=0.05)


def test_delayed_rewards_are_weighted() -> None:
    """Where all rewards come at the end, nothing tells skill from luck."""
    buffer = buffer_of([float(i) for i in range(40)], [5] * 40)
    buffer.rewards[torch.arange(len(buffer.rewards)) % 5 != 4] = 0.0
    weights = TrajectoryWeights(temperature=0.05, least_persistence=0.3)
    drawn = buffer.for_imitation(weights).sample_observations_and_actions(1_000)[1]
    assert drawn.float().mean() > 25


def test_single_decisions_are_drawn_alike() -> None:
    """Of one step each, the best trajectories are the luckiest ones."""
    buffer = buffer_of([float(i) for i in range(40)], [1] * 40)
    measured = TrajectoryWeights(temperature=0.05, least_persistence=0.3)
    alike = buffer.for_imitation(measured)
    assert not alike.is_weighted
    assert alike.sample_observations_and_actions(1_000)[1].float().mean() == pytest.approx(
        19.5, 0.1
    )
    assert buffer.for_imitation(TrajectoryWeights(temperature=0.05)).is_weighted  # if asked for


def test_persistence_is_checked() -> None:
    with pytest.raises(ValueError, match="least_persistence in"):
        TrajectoryWeights(least_persistence=2)
