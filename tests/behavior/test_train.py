from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spin_d3rlpy.behavior import recipes, train
from spin_d3rlpy.behavior.export import policy_arrays
from spin_d3rlpy.behavior.recipes import RECIPES, get_recipe, lineage
from spin_d3rlpy.behavior.train import (
    FALL_STEPS,
    N_ENVS,
    BehaviorTrainer,
    RunningMoments,
    _Explorers,
    _Falls,
    select_policy,
)
from spin_d3rlpy.behavior.transfer import interpolation
from spin_d3rlpy.errors import DatasetNotFoundError
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy
from spin_envs.maze import START
from spin_envs.rollout import rollout

TINY = dataclasses.replace(
    RECIPES["cheetah-run-b3-medium"],
    width=16,
    env_steps=1_600,
    evaluation_interval=800,
    target=3.0,
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "WARMUP_STEPS", 400)
    monkeypatch.setattr(train, "RESUME_FILL_STEPS", 400)
    monkeypatch.setattr(train, "EVALUATION_EPISODES", 2)
    monkeypatch.setattr(train, "RECORD_EPISODES", 3)


def test_a_run_leaves_a_curve_snapshots_and_selected_policies(tmp_path: Path) -> None:
    trainer = BehaviorTrainer(TINY, tmp_path / "run")
    trainer.train(progress=False)
    assert trainer.env_steps == 1600
    assert trainer.algo.grad_step == pytest.approx(1200 / TINY.steps_per_update, abs=8)
    assert {p.stem for p in (tmp_path / "run" / "snapshots").iterdir()} == {"800", "1600"}
    destination = tmp_path / "policies"
    destination.mkdir()
    select_policy(TINY, tmp_path / "run", destination)
    record = json.loads((destination / "cheetah-run-b3-medium.json").read_text())
    assert record["episodes"] == 3
    assert record["min_return"] <= record["mean_return"] <= record["max_return"]
    assert record["env_steps"] in (800, 1600)
    assert {"mujoco", "dm_control", "torch", "spin-d3rlpy"} <= record["versions"].keys()
    curve = (destination / "cheetah-run-b3-medium.csv").read_text().splitlines()
    whole = (tmp_path / "run" / "curve.csv").read_text().splitlines()
    assert curve == [row.rpartition(",")[0] for row in whole[: len(curve)]]  # without seconds
    assert curve[-1].startswith(f"{record['env_steps']},")
    policy = BehaviorPolicy.from_files(
        destination / "cheetah-run-b3-medium.npz", destination / "cheetah-run-b3-medium.json"
    )
    assert policy(np.zeros((2, 17), np.float32)).shape == (2, 6)


def test_a_stopped_run_resumes_where_it_was(tmp_path: Path) -> None:
    half = dataclasses.replace(TINY, env_steps=800)
    BehaviorTrainer(half, tmp_path).train(progress=False)
    resumed = BehaviorTrainer(TINY, tmp_path)
    assert resumed.env_steps == 800
    first = BehaviorTrainer(half, tmp_path)
    observations = np.random.default_rng(0).normal(size=(5, 17)).astype(np.float32)
    assert np.array_equal(resumed.algo.predict(observations), first.algo.predict(observations))
    resumed.train(progress=False)
    rows = (tmp_path / "curve.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["env_steps", "800", "1600"]


def test_a_maze_run_learns_from_steps_of_episodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = dataclasses.replace(
        RECIPES["maze-a3-medium"], width=16, env_steps=1_600, evaluation_interval=800
    )
    trainer = BehaviorTrainer(recipe, tmp_path)
    steps: dict[int, list[tuple[float, bool]]] = {i: [] for i in range(8)}
    original = trainer._replay.append

    def append(
        env: int,
        observation: NDArray[np.float32],
        action: NDArray[np.int64],
        reward: float,
        following: NDArray[np.float32],
        terminated: bool,
        truncated: bool,
    ) -> None:
        if not steps[env] or steps[env][-1][1]:
            np.testing.assert_allclose(observation, START, rtol=1e-6)
        steps[env].append((reward, bool(terminated or truncated)))
        original(env, observation, action, reward, following, terminated, truncated)

    monkeypatch.setattr(trainer._replay, "append", append)
    trainer.train(progress=False)
    assert sum(map(len, steps.values())) == trainer.env_steps
    assert 1600 <= trainer.env_steps < 1608
    ends = [reward for env in steps.values() for reward, over in env if over]
    assert ends
    # Only the last step of an episode that timed out pays nothing; resetting steps do, too.
    free = [over for env in steps.values() for reward, over in env if reward == 0]
    assert all(free)
    assert (tmp_path / "snapshots" / f"{trainer.env_steps}.npz").exists()


def test_episodes_of_training_are_cut_off_and_bootstrapped_those_of_evaluation_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = dataclasses.replace(TINY, env_steps=800, episode_steps=20)
    trainer = BehaviorTrainer(recipe, tmp_path)
    ends: list[tuple[bool, bool]] = []
    original = trainer._replay.append

    def append(env: int, *step: Any) -> None:
        ends.append(step[-2:])
        original(env, *step)

    monkeypatch.setattr(trainer._replay, "append", append)
    lengths = []

    def measured_rollout(*args: Any, **kwargs: Any) -> Any:
        for episode in rollout(*args, **kwargs):
            lengths.append(len(episode.rewards))
            yield episode

    monkeypatch.setattr(train, "rollout", measured_rollout)
    trainer.train(progress=False)
    of_one_environment = ends[::N_ENVS]
    assert [i for i, end in enumerate(of_one_environment) if end == (False, True)][:2] == [19, 39]
    assert not any(terminated for terminated, _ in ends)
    assert lengths == [1000, 1000]


def test_a_fall_is_a_low_reward_for_a_while_and_ends_the_episode(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, fall_reward=0.5)
    falls, never = _Falls(recipe), _Falls(TINY)
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
    assert not falls.notice(rewards, over).any()  # counted anew


def test_training_episodes_end_in_falls_and_the_next_ones_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An untrained cheetah is never as fast as that: every episode ends after FALL_STEPS.
    recipe = dataclasses.replace(TINY, env_steps=800, fall_reward=1.0)
    trainer = BehaviorTrainer(recipe, tmp_path)
    steps: list[tuple[NDArray[np.float32], bool]] = []
    original = trainer._replay.append

    def append(env: int, observation: NDArray[np.float32], *step: Any) -> None:
        if env == 0:
            steps.append((observation.copy(), step[-2]))
        original(env, observation, *step)

    monkeypatch.setattr(trainer._replay, "append", append)
    trainer.train(progress=False)
    terminals = [terminated for _, terminated in steps]
    assert [i for i, t in enumerate(terminals) if t] == list(range(9, len(steps), 10))
    speeds = np.array([np.abs(observation[8:]).max() for observation, _ in steps])
    assert speeds[10::10].max() < 0.5 < speeds[15::10].min()  # episodes begin at rest


def test_training_begins_with_the_policy_of_the_initial_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataclasses.replace(TINY, number=4)  # no policy of it is shipped
    recipe = dataclasses.replace(TINY, number=7, initial=first.name, initial_scale=0.5)
    with pytest.raises(FileNotFoundError, match="cheetah-run-b7-medium begins"):
        BehaviorTrainer(recipe, tmp_path / "after")
    folder = tmp_path / first.name
    BehaviorTrainer(first, folder).train(progress=False)
    arrays = select_policy(first, folder, folder)
    before = BehaviorPolicy.from_files(arrays, arrays.with_suffix(".json"))
    second = BehaviorTrainer(recipe, tmp_path / "after")
    assert second.env_steps == 0
    for averaged in (False, True):
        after = BehaviorPolicy(policy_arrays(second.algo, averaged), {})
        observations = np.random.default_rng(0).normal(size=(50, 17)).astype(np.float32)
        old = 0.5 * before.utilities(observations).reshape(50, 6, 4)
        new = after.utilities(observations).reshape(50, 6, 7)
        np.testing.assert_allclose(new[..., ::2], old, atol=2e-3)  # half precision
        np.testing.assert_allclose(new[..., 1], old[..., :2].mean(-1), atol=2e-3)
    started: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
    original = second._replay.append

    def append(
        env: int, observation: NDArray[np.float32], action: NDArray[np.int64], *step: Any
    ) -> None:
        if env == 0:  # does not explore
            started.append((observation.copy(), action.copy()))
        original(env, observation, action, *step)

    monkeypatch.setattr(second._replay, "append", append)
    second.train(progress=False)
    assert second.algo.grad_step == pytest.approx(1200 / TINY.steps_per_update, abs=8)
    # Before the first update it acts by the policy: coarse choices are every other fine one.
    by_policy = [2 * before(observation[None])[0] for observation, _ in started[:20]]
    agreement = np.mean([a == b for (_, a), b in zip(started, by_policy, strict=False)])
    assert agreement > 0.95
    assert BehaviorTrainer(recipe, tmp_path / "after").env_steps == 1600  # its own checkpoint


def test_training_begins_with_a_shipped_policy(tmp_path: Path) -> None:
    shipped = "cheetah-run-b3-expert"
    recipe = dataclasses.replace(TINY, width=128, number=5, initial=shipped)
    trainer = BehaviorTrainer(recipe, tmp_path)
    observations = np.random.default_rng(0).normal(size=(50, 17)).astype(np.float32)
    old = load_behavior_policy(shipped).utilities(observations).reshape(50, 6, 3)
    new = BehaviorPolicy(policy_arrays(trainer.algo), {}).utilities(observations)
    np.testing.assert_allclose(new.reshape(50, 6, 5)[..., ::2], old, atol=0.1, rtol=2e-3)
    with pytest.raises(ValueError, match=r"input.weight of shape \(2, 17, 16\)"):
        BehaviorTrainer(dataclasses.replace(recipe, width=16), tmp_path / "narrow")


def test_snapshots_are_of_averaged_networks_where_the_recipe_says_so(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, env_steps=800, averaged=True)
    trainer = BehaviorTrainer(recipe, tmp_path)
    trainer.train(progress=False)
    with np.load(tmp_path / "snapshots" / "800.npz") as snapshot:
        weights = snapshot["head.weight"]
    assert (weights == policy_arrays(trainer.algo, averaged=True)["head.weight"]).all()
    assert (weights != policy_arrays(trainer.algo)["head.weight"]).any()


def test_interpolation_is_by_places_in_the_range() -> None:
    matrix = interpolation((3, 2), (4, 2))
    utilities = np.array([0.0, 3.0, 9.0, 5.0, 7.0], np.float32)
    np.testing.assert_allclose(matrix @ utilities, [0, 2, 5, 9, 5, 7], rtol=1e-6)
    with pytest.raises(ValueError, match=r"\(2\); got 1"):
        interpolation((3, 2), (4,))


def test_initial_recipes_exist_and_fit() -> None:
    for recipe in RECIPES.values():
        if recipe.initial is not None:
            other = RECIPES[recipe.initial]
            assert (other.width, other.n_critics) == (recipe.width, recipe.n_critics)


def test_recipes_are_trained_whose_policies_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "shipped_policies", lambda: ["cheetah-run-b3-expert"])
    missing = dataclasses.replace(TINY, initial="dog-trot-b30-expert", number=4)
    assert lineage(missing)[1:] == [RECIPES["dog-trot-b30-expert"], missing]
    shipped = dataclasses.replace(TINY, initial="cheetah-run-b3-expert")
    assert lineage(shipped) == [shipped]


def test_maze_targets_follow_the_published_expert() -> None:
    assert RECIPES["maze-a10-expert"].target == 99.37
    for actuators in (3, 5, 7, 10, 12, 15):
        expert = RECIPES[f"maze-a{actuators}-expert"].target
        assert 0.33 < RECIPES[f"maze-a{actuators}-medium"].target / expert < 0.45


def test_exported_policy_acts_like_the_network(tmp_path: Path) -> None:
    trainer = BehaviorTrainer(TINY, tmp_path)
    trainer.algo.config.observation_scaler.mean += 0.5  # type: ignore[union-attr]
    trainer.algo.config.observation_scaler.std += 2.0  # type: ignore[union-attr]
    torch.manual_seed(0)
    policy = BehaviorPolicy(policy_arrays(trainer.algo), {})
    observations = np.random.default_rng(0).normal(size=(400, 17)).astype(np.float32) * 3
    agreement = (policy(observations) == trainer.algo.predict(observations)).mean()
    assert agreement > 0.99  # weights were rounded to half precision


def test_running_moments_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(2, 3, size=(40, 5)).astype(np.float32)
    moments = RunningMoments(5)
    for part in np.split(rows, [3, 4, 20]):
        moments.update(part)
    scaler = moments.scaler()
    assert scaler.mean is not None
    assert scaler.std is not None
    np.testing.assert_allclose(scaler.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(scaler.std, rows.std(0), rtol=1e-5)


def test_unknown_recipe_lists_those_that_exist() -> None:
    with pytest.raises(DatasetNotFoundError, match="cheetah-run-b3"):
        get_recipe("cheetah-fly-b3")


def test_explorers_keep_random_actions_for_random_times_and_leave_the_others_alone() -> None:
    recipe = dataclasses.replace(RECIPES["maze-a3-expert"], n_explorers=2, persistence=4.0)
    explorers = _Explorers(recipe, np.array([2, 2, 2]))
    history = []
    for _ in range(4000):
        actions = np.full((N_ENVS, 3), -1)
        explorers.act(actions)
        assert (actions[:-2] == -1).all()
        history.append(actions[-2:].copy())
    played = np.array(history)
    assert played.mean() == pytest.approx(0.5, abs=0.05)
    # A new action, one time in four, is the old one by chance one time in eight.
    changes = (played[1:] != played[:-1]).any(-1).mean(0)
    assert changes == pytest.approx(0.25 * 7 / 8, abs=0.03)
    assert (played[:, 0] != played[:, 1]).any(-1).mean() > 0.8
