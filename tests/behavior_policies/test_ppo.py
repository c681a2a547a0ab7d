from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.behavior_policies import make_trainer, ppo
from examples.behavior_policies.decqn import DecQNTrainer
from examples.behavior_policies.ppo import (
    CLIP,
    FALL_STEPS,
    GAMMA,
    LAMBDA,
    N_ENVS,
    PPOTrainer,
    Rollout,
    _Falls,
    clipped_loss,
)
from examples.behavior_policies.recipes import RECIPES, PPORecipe
from examples.behavior_policies.selection import select_policy
from spin_envs.behavior import BehaviorPolicy

pytestmark = pytest.mark.usefixtures("short_episodes")
NEVER = -1.0  # no reward is below it
TINY = PPORecipe(
    task="cheetah-run",
    number=3,
    level="medium",
    target=3.0,
    env_steps=1_280,
    evaluation_interval=640,
    fall_reward=NEVER,
    width=16,
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "ROLLOUT_STEPS", 20)
    monkeypatch.setattr(ppo, "BATCH_SIZE", 128)


def collected(training: PPOTrainer, n_rollouts: int) -> list[Rollout]:
    """Rollouts of a training, which learns nothing."""
    rollouts: list[Rollout] = []
    training._learn = rollouts.append  # type: ignore[method-assign, assignment]
    training.recipe = dataclasses.replace(
        training.recipe, env_steps=int((n_rollouts - 0.5) * 20 * N_ENVS), evaluation_interval=10**9
    )
    training.train(progress=False)
    return rollouts


@pytest.mark.slow
def test_the_recipe_says_which_algorithm_trains(tmp_path: Path) -> None:
    assert isinstance(make_trainer(TINY, tmp_path / "ppo"), PPOTrainer)
    maze = dataclasses.replace(RECIPES["maze-a3-medium"], env_steps=100)
    assert isinstance(make_trainer(maze, tmp_path / "decqn"), DecQNTrainer)


@pytest.mark.slow
def test_a_run_leaves_a_curve_and_snapshots_and_a_stopped_one_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    half = dataclasses.replace(TINY, env_steps=640)
    PPOTrainer(half, folder).train(progress=False)
    first, resumed = PPOTrainer(half, folder), PPOTrainer(TINY, folder)
    assert resumed.env_steps == 640
    for name, array in resumed.policy_arrays().items():
        np.testing.assert_array_equal(array, first.policy_arrays()[name])
    moments = resumed.optim.state_dict()["state"][0]
    assert moments["step"] > 0
    resumed.train(progress=False)
    assert {p.stem for p in (folder / "snapshots").iterdir()} == {"640", "1280"}
    rows = (folder / "curve.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["env_steps", "640", "1280"]
    arrays = select_policy(TINY, folder, folder)
    policy = BehaviorPolicy.from_files(arrays, arrays.with_suffix(".json"))
    assert policy.record["algorithm"] == "PPO"
    assert "learned_bins" not in policy.record
    observations = np.random.default_rng(0).normal(size=(400, 17)).astype(np.float32)
    scaled = resumed._moments.scaler().transform(torch.from_numpy(observations))
    with torch.no_grad():
        mode = resumed.policy.greedy(scaled).numpy()
    latest = BehaviorPolicy(resumed.policy_arrays(), {})
    assert (latest(observations) == mode).mean() > 0.98  # weights were rounded to half precision


@pytest.mark.slow
def test_the_snapshot_of_a_long_training_is_found(tmp_path: Path) -> None:
    training = PPOTrainer(dataclasses.replace(TINY, env_steps=12_345_679), tmp_path)
    training.env_steps = 12_345_678 - 639
    training.train(progress=False)
    assert [path.stem for path in (tmp_path / "snapshots").iterdir()] == ["12345679"]
    arrays = select_policy(TINY, tmp_path, tmp_path)
    assert json.loads(arrays.with_suffix(".json").read_text())["env_steps"] == 12_345_679
    assert arrays.with_suffix(".csv").read_text().splitlines()[1].startswith("12345679,")


@pytest.mark.slow
def test_rollouts_hold_what_was_played(tmp_path: Path) -> None:
    training = PPOTrainer(dataclasses.replace(TINY, episode_steps=15), tmp_path)
    first, second = collected(training, 2)
    assert first.over.nonzero()[:, 0].unique().tolist() == [14]
    assert (~first.played).nonzero()[:, 0].unique().tolist() == [15]
    assert second.over.nonzero()[:, 0].unique().tolist() == [10]
    assert (first.rewards[15] == 0).all()
    with torch.no_grad():
        torch.testing.assert_close(first.values, training.value(first.observations))
        log_probs = training._log_probs(first.observations.flatten(0, 1))
    chosen = log_probs.gather(-1, first.actions.flatten(0, 1)[..., None]).squeeze(-1)
    torch.testing.assert_close(chosen, first.log_probs.flatten(0, 1), atol=1e-5, rtol=1e-5)
    # What follows a step is what the next one begins with; a cut-off episode is bootstrapped.
    torch.testing.assert_close(first.next_values[:14], first.values[1:15])
    assert (first.next_values[14] != 0).all()
    assert (first.next_values[14] != first.values[16]).all()
    counts = torch.stack([(first.actions == k).sum() for k in range(3)]) / first.actions.numel()
    torch.testing.assert_close(counts, torch.full((3,), 1 / 3), atol=0.03, rtol=0)
    assert training.env_steps == int(first.played.sum() + second.played.sum())


@pytest.mark.slow
def test_falls_end_episodes_and_pay_nothing_afterwards(tmp_path: Path) -> None:
    # An untrained cheetah is never as fast as that: every episode ends after FALL_STEPS.
    (rollout,) = collected(PPOTrainer(dataclasses.replace(TINY, fall_reward=1.0), tmp_path), 1)
    assert rollout.over.nonzero()[:, 0].unique().tolist() == [9]
    assert (rollout.next_values[9] == 0).all()
    assert (~rollout.played).nonzero()[:, 0].unique().tolist() == [10]


def test_a_fall_is_a_low_reward_for_a_while() -> None:
    falls, never = _Falls(0.5), _Falls(NEVER)
    over = np.zeros(N_ENVS, dtype=np.bool_)
    rewards = np.full(N_ENVS, 0.4)
    rewards[0] = 0.6
    for step in range(FALL_STEPS):
        low = rewards.copy()
        low[1] = 0.6 if step == 3 else 0.4  # gets up in between
        ended = over.copy()
        ended[2] = step == FALL_STEPS - 1  # its episode is over anyway
        fallen = falls.notice(low, ended)
        assert not never.notice(low, ended).any()
        if step < FALL_STEPS - 1:
            assert not fallen.any()
    assert fallen.tolist() == [False, False, False, *[True] * (N_ENVS - 3)]
    assert not falls.notice(rewards, over).any()  # counted from the start


def test_advantages_are_discounted_sums_of_errors_within_an_episode() -> None:
    rollout = Rollout.empty(4, 1, 2, 2)
    rollout.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rollout.values[:, 0] = torch.tensor([0.5, 0.0, 1.0, 0.0])
    rollout.next_values[:, 0] = torch.tensor([0.0, 1.0, 0.0, 2.0])
    rollout.over[1] = True
    errors = [10 - 0.5, 20 + GAMMA - 0.0, 30 - 1.0, 40 + 2 * GAMMA]
    decay = GAMMA * LAMBDA
    expected = [
        errors[0] + decay * errors[1],
        errors[1],
        errors[2] + decay * errors[3],
        errors[3],
    ]
    torch.testing.assert_close(rollout.advantages(10.0)[:, 0], torch.tensor(expected))


def test_each_slot_is_clipped_by_itself() -> None:
    log_ratio = torch.tensor([[0.0, 1.0]], requires_grad=True)
    clipped_loss(log_ratio, torch.tensor([[2.0]])).backward()
    assert log_ratio.grad is not None
    # The slot that has moved enough stays, the other one still learns.
    assert log_ratio.grad.tolist() == [[-2.0, 0.0]]
    value = clipped_loss(log_ratio, torch.tensor([[2.0]]))
    assert value.item() == pytest.approx(-2.0 * (1 + 1 + CLIP))


def test_a_slot_that_moved_the_wrong_way_is_never_clipped() -> None:
    log_ratio = torch.tensor([[0.0, 1.0]], requires_grad=True)
    clipped_loss(log_ratio, torch.tensor([[-2.0]])).backward()
    assert log_ratio.grad is not None
    torch.testing.assert_close(log_ratio.grad, torch.tensor([[2.0, 2.0 * math.e]]))


@pytest.mark.slow
def test_nothing_is_learned_from_steps_that_were_not_played(tmp_path: Path) -> None:
    learned = []
    for observation in (0.0, 100.0):
        training = PPOTrainer(dataclasses.replace(TINY, episode_steps=15), tmp_path)
        (rollout,) = collected(training, 1)
        assert not rollout.played.all()
        rollout.observations[~rollout.played] = observation
        del training._learn
        training._learn(rollout)
        learned.append(training.policy_arrays())
    for name, array in learned[0].items():
        np.testing.assert_array_equal(array, learned[1][name])


@pytest.mark.slow
def test_learning_makes_better_actions_likelier_and_values_truer(tmp_path: Path) -> None:
    training = PPOTrainer(dataclasses.replace(TINY, width=32), tmp_path)
    (rollout,) = collected(training, 1)
    # The first slot's last choice is what pays.
    paying = (rollout.actions[..., 0] == 2).float()
    rollout.rewards.copy_(paying)
    rollout.values.zero_()
    rollout.next_values.zero_()
    rollout.over.fill_(True)
    training._returns.m2[:] = training._returns.count  # a standard deviation of 1
    observations = rollout.observations.flatten(0, 1)
    del training._learn
    before = training._log_probs(observations).exp().mean(0)[:, 2]
    for _ in range(3):
        training._learn(rollout)
    after = training._log_probs(observations).exp().mean(0)[:, 2]
    assert after[0] > before[0] + 0.1
    assert (after[1:] - before[1:]).abs().max() < 0.06
    with torch.no_grad():
        assert training.value(observations).mean() == pytest.approx(1 / 3, abs=0.15)


def test_the_learning_rate_follows_the_divergence(tmp_path: Path) -> None:
    training = PPOTrainer(TINY, tmp_path)
    rate = ppo.LEARNING_RATE
    for divergence, expected in ((0.01, rate * 1.2), (0.05, rate * 1.2), (0.2, rate * 0.8)):
        training._adapt_learning_rate(divergence)
        assert training.optim.param_groups[0]["lr"] == pytest.approx(expected)
    for _ in range(30):
        training._adapt_learning_rate(1.0)
    assert training.optim.param_groups[0]["lr"] == ppo.LEARNING_RATES[0]


@pytest.mark.slow
def test_a_policy_of_other_bins_than_learned_acts_by_its_mean(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, number=7, learned_bins=3, env_steps=640)
    training = PPOTrainer(recipe, tmp_path)
    training.train(progress=False)
    arrays = select_policy(recipe, tmp_path, tmp_path)
    policy = BehaviorPolicy.from_files(arrays, arrays.with_suffix(".json"))
    assert (policy.record["bins"], policy.record["learned_bins"]) == (7, 3)
    assert policy.nvec.tolist() == [7] * 6
    observations = np.random.default_rng(0).normal(size=(400, 17)).astype(np.float32)
    scaled = training._moments.scaler().transform(torch.from_numpy(observations))
    with torch.no_grad():
        probs = training._log_probs(scaled).exp()
    assert probs.shape == (400, 6, 3)
    place = (probs @ torch.tensor([0.0, 0.5, 1.0])).numpy() * 6
    # Within half a choice; weights were rounded to half precision.
    assert np.abs(policy(observations) - place).max() < 0.51


@pytest.mark.parametrize("bins", [10, 30])
def test_dogs_with_more_bins_learn_with_three(bins: int) -> None:
    more, three = RECIPES[f"dog-trot-b{bins}-expert"], RECIPES["dog-trot-b3-expert"]
    assert isinstance(three, PPORecipe)
    expected = dataclasses.replace(three, number=bins, learned_bins=3, target=more.target)
    assert more == expected
