"""Dispatch and slate: rewards, rules of behavior policies, datasets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from spin_d3rlpy import load_dataset
from spin_envs import normalized_score, reference_scores
from spin_envs.behavior import load_behavior_policy
from spin_envs.dispatch import DispatchEnv
from spin_envs.rollout import rollout
from spin_envs.slate import SlateEnv, item_qualities, rank_factors
from spin_envs.tasks import BenchmarkTask
from spin_envs.vector import make_batch


def dispatch(couriers: list[list[int]], orders: list[list[int]]) -> DispatchEnv:
    env = DispatchEnv(len(couriers))
    env.reset(seed=0)
    env._couriers, env._orders = [list(c) for c in couriers], [list(o) for o in orders]
    return env


def test_a_courier_moves_three_cells_along_x_first_and_serves_what_it_reaches() -> None:
    env = dispatch([[0, 0], [9, 9]], [[2, 2, 5], [9, 7, 5]])
    _, reward, terminated, truncated, info = env.step(np.array([0, 1]))
    assert env._couriers == [[2, 1], [9, 7]]
    assert (reward, terminated, truncated, info) == (0.5, False, False, {"collisions": 0})
    assert env._orders[0] == [2, 2, 4]
    assert env._orders[1][2] in range(4, 9)  # a new one
    _, reward, *_ = env.step(np.array([0, 2]))  # the second courier stays
    assert env._couriers[0] == [2, 2]
    assert env._couriers[1] == [9, 7]
    assert reward == 0.5


def test_of_two_couriers_with_one_order_the_nearer_goes_and_the_other_loses_the_step() -> None:
    env = dispatch([[0, 0], [1, 0], [5, 5]], [[2, 0, 3], [8, 8, 3], [9, 9, 3]])
    _, reward, *_, info = env.step(np.array([0, 0, 0]))
    assert env._couriers == [[0, 0], [2, 0], [5, 5]]
    assert reward == pytest.approx(1 / 3)
    assert info == {"collisions": 2}


def test_orders_close_when_their_time_is_over() -> None:
    env = dispatch([[0, 0], [0, 0]], [[9, 9, 1], [9, 9, 2]])
    observation, reward, *_ = env.step(np.array([2, 2]))
    assert reward == 0.0
    assert env._orders[0][2] >= 4
    assert env._orders[1] == [9, 9, 1]
    assert observation[-3:] == pytest.approx([1.0, 1.0, 1 / 8])


def slate(interests: list[float], places: int = 5) -> SlateEnv:
    env = SlateEnv(places)
    env.reset(seed=0)
    env._interests = interests
    return env


def test_a_page_pays_interest_times_quality_and_what_others_leave() -> None:
    quality = item_qualities(10)
    interests = [0.5, 0.3, 0.1, 0.05, 0.05]
    whole = quality[0] + 0.5 * quality[5]  # all that a user with one interest could be paid
    for page, expected, collisions in (
        ([0, 1, 2, 3, 4], interests @ quality[:5], 0),
        ([4, 3, 2, 1, 0], interests @ quality[:5], 0),
        ([0, 0, 0, 1, 1], 0.5 * quality[0] + 0.3 * quality[1], 3),
        ([5, 0, 1, 2, 3], interests[:4] @ quality[:4] + 0.5 * 0.5 * quality[5], 0),
    ):
        env = slate(interests)
        _, reward, _, truncated, info = env.step(np.array(page))
        assert reward == pytest.approx(expected / whole)
        assert not truncated
        assert info == {"collisions": collisions}


def test_what_better_items_of_a_category_leave() -> None:
    assert rank_factors(np.array([0, 1, 5, 10]), 5).tolist() == [1.0, 1.0, 0.5, 0.25]
    assert rank_factors(np.array([0, 5]), 20)[1] == pytest.approx(0.5 ** (5 / 20))


def test_a_category_that_fills_the_page_loses_interest() -> None:
    env = SlateEnv(5)
    env.reset(seed=3)
    for _ in range(10):
        observation, *_ = env.step(np.zeros(5, int))
    assert observation.argmin() == 0


@pytest.mark.parametrize("name", ["dispatch-n4", "slate-n4"])
def test_episodes_are_truncated_and_drawn(name: str) -> None:
    task = BenchmarkTask.parse(name)
    assert task.name == name
    env: Any = gymnasium.make(task.env_id, **task.env_kwargs, render_mode="rgb_array", size=64)
    env.reset(seed=1)
    blank = env.render()
    for t in range(50):
        *_, truncated, _ = env.step(env.action_space.sample())
        assert truncated == (t == 49)
    frame = env.render()
    assert frame.shape == (64, 64, 3)
    assert frame.dtype == np.uint8
    assert (frame != blank).any()


@pytest.mark.parametrize("name", ["dispatch-n20", "slate-n20"])
def test_rules_order_and_vary(name: str) -> None:
    """The expert's choices never collide, and one state has many; medium's do."""
    task = BenchmarkTask.parse(name)
    envs = make_batch(task.env_id, 20, **task.env_kwargs)
    states, _ = envs.reset(seed=5)
    expert, medium = (load_behavior_policy(f"{name}-{level}") for level in ("expert", "medium"))
    actions = expert(np.repeat(states[:1], 30, 0))
    assert all(len(set(a)) == 20 for a in actions.tolist())
    assert len({tuple(a) for a in actions.tolist()}) > 10
    assert any(len(set(a)) < 20 for a in medium(states).tolist())
    rng = np.random.default_rng(0)
    nvec = envs.single_action_space.nvec  # type: ignore[attr-defined]

    def mean(act: Any) -> float:
        played = rollout(envs, lambda x, _: act(x), range(20), record=False)
        return float(np.mean([e.rewards.sum() for e in played]))

    random = mean(lambda x: rng.integers(nvec, size=(len(x), 20)))
    assert random < mean(medium) - 2 < mean(expert) - 4
    envs.close()


def test_datasets_by_name_play_the_rules_alike_in_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    buffers = []
    for jobs in (1, 2):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / str(jobs)))
        name = "spin/slate-n5/medium-expert-4k-v0"
        buffer, env = load_dataset(name, jobs=jobs, progress=False)
        buffers.append(buffer)
        assert env.spec is not None
        assert env.spec.kwargs["places"] == 5
    first, second = buffers
    assert np.array_equal(first.actions, second.actions)
    assert np.array_equal(first.rewards, second.rewards)
    assert first.size() == 80
    returns = first.returns().numpy()
    assert returns[40:].mean() > returns[:40].mean() + 5


@pytest.mark.parametrize("name", ["dispatch-expert", "slate-nx-medium", "dispatch-b3-expert"])
def test_names_that_only_resemble_a_rules(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"No behavior policy '{name}'"):
        load_behavior_policy(name)


def test_reference_scores() -> None:
    for name in ("spin/dispatch-n10", "spin/slate-n10"):
        scores = reference_scores(f"{name}/medium-v0")
        assert scores is not None
        task = BenchmarkTask.parse(name.removeprefix("spin/"))
        assert reference_scores(task.env_id, **task.env_kwargs) == scores
        assert reference_scores(task.env_id) == scores
        assert normalized_score(name + "/medium-v0", scores[1]) == 100.0
    assert reference_scores("spin/slate-n11/medium-v0") is None


@pytest.mark.parametrize("couriers", [1, 101, 2.5])
def test_wrong_sizes(couriers: Any) -> None:
    with pytest.raises(ValueError, match="couriers"):
        DispatchEnv(couriers)
    with pytest.raises(ValueError, match="places"):
        SlateEnv(couriers)
