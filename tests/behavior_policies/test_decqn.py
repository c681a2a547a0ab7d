from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from examples.behavior_policies import decqn, selection
from examples.behavior_policies.decqn import N_ENVS, DecQNTrainer, _Explorers
from examples.behavior_policies.recipes import RECIPES, DecQNRecipe, Recipe
from examples.behavior_policies.selection import select_policy
from spin_envs.behavior import BehaviorPolicy
from spin_envs.maze import START
from spin_envs.rollout import rollout

pytestmark = pytest.mark.usefixtures("short_episodes")


def tiny(recipe: Recipe) -> DecQNRecipe:
    """The recipe for so small a network and so few steps that a test can wait for it."""
    assert isinstance(recipe, DecQNRecipe)
    return dataclasses.replace(recipe, width=16, env_steps=1_600, evaluation_interval=800)


TINY = dataclasses.replace(tiny(RECIPES["cheetah-run-b3-medium"]), target=3.0)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decqn, "WARMUP_STEPS", 400)
    monkeypatch.setattr(decqn, "RESUME_FILL_STEPS", 400)


@pytest.mark.slow
def test_a_run_leaves_a_curve_snapshots_and_selected_policies(tmp_path: Path) -> None:
    training = DecQNTrainer(TINY, tmp_path / "run")
    training.train(progress=False)
    assert training.env_steps == 1600
    assert training.algo.grad_step == pytest.approx(1200 / TINY.steps_per_update, abs=8)
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


@pytest.mark.slow
def test_a_stopped_run_resumes_where_it_was(tmp_path: Path) -> None:
    half = dataclasses.replace(TINY, env_steps=800)
    DecQNTrainer(half, tmp_path).train(progress=False)
    resumed = DecQNTrainer(TINY, tmp_path)
    assert resumed.env_steps == 800
    first = DecQNTrainer(half, tmp_path)
    observations = np.random.default_rng(0).normal(size=(5, 17)).astype(np.float32)
    assert np.array_equal(resumed.algo.predict(observations), first.algo.predict(observations))
    resumed.train(progress=False)
    rows = (tmp_path / "curve.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["env_steps", "800", "1600"]


@pytest.mark.slow
def test_a_maze_run_learns_from_steps_of_episodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = DecQNTrainer(tiny(RECIPES["maze-a3-medium"]), tmp_path)
    steps: dict[int, list[tuple[float, bool]]] = {i: [] for i in range(8)}
    original = training._replay.append

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

    monkeypatch.setattr(training._replay, "append", append)
    training.train(progress=False)
    assert sum(map(len, steps.values())) == training.env_steps
    assert 1600 <= training.env_steps < 1608
    ends = [reward for env in steps.values() for reward, over in env if over]
    assert ends
    # Only the last step of an episode that timed out pays nothing; resetting steps do, too.
    free = [over for env in steps.values() for reward, over in env if reward == 0]
    assert all(free)
    assert (tmp_path / "snapshots" / f"{training.env_steps}.npz").exists()


@pytest.mark.slow
def test_episodes_of_training_are_cut_off_and_bootstrapped_those_of_evaluation_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spin_envs.suite.EPISODE_STEPS", 1000)
    recipe = dataclasses.replace(TINY, env_steps=800, episode_steps=20)
    training = DecQNTrainer(recipe, tmp_path)
    ends: list[tuple[bool, bool]] = []
    original = training._replay.append

    def append(env: int, *step: Any) -> None:
        ends.append(step[-2:])
        original(env, *step)

    monkeypatch.setattr(training._replay, "append", append)
    lengths = []

    def measured_rollout(*args: Any, **kwargs: Any) -> Any:
        for episode in rollout(*args, **kwargs):
            lengths.append(len(episode.rewards))
            yield episode

    monkeypatch.setattr(selection, "rollout", measured_rollout)
    training.train(progress=False)
    of_one_environment = ends[::N_ENVS]
    assert [i for i, end in enumerate(of_one_environment) if end == (False, True)][:2] == [19, 39]
    assert not any(terminated for terminated, _ in ends)
    assert lengths == [1000, 1000]


@pytest.mark.slow
def test_snapshots_are_of_averaged_networks_where_the_recipe_says_so(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, env_steps=800, averaged=True)
    training = DecQNTrainer(recipe, tmp_path)
    training.train(progress=False)
    with np.load(tmp_path / "snapshots" / "800.npz") as snapshot:
        weights = snapshot["head.weight"]
    assert (weights == training.policy_arrays()["head.weight"]).all()
    last = DecQNTrainer(dataclasses.replace(recipe, averaged=False), tmp_path)
    assert (weights != last.policy_arrays()["head.weight"]).any()


def test_exported_policy_acts_like_the_network(tmp_path: Path) -> None:
    training = DecQNTrainer(TINY, tmp_path)
    training.algo.config.observation_scaler.mean += 0.5  # type: ignore[union-attr]
    training.algo.config.observation_scaler.std += 2.0  # type: ignore[union-attr]
    torch.manual_seed(0)
    policy = BehaviorPolicy(training.policy_arrays(), {})
    observations = np.random.default_rng(0).normal(size=(400, 17)).astype(np.float32) * 3
    agreement = (policy(observations) == training.algo.predict(observations)).mean()
    assert agreement > 0.99  # weights were rounded to half precision


def test_explorers_keep_random_actions_for_random_times_and_leave_the_others_alone() -> None:
    recipe = dataclasses.replace(tiny(RECIPES["maze-a3-expert"]), n_explorers=2)
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
