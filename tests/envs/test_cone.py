"""Cone: its rules, its exact optimum, names of its tasks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from spin_envs import normalized_score, reference_scores
from spin_envs.behavior import load_behavior_policy
from spin_envs.cone import (
    GOAL_REWARD,
    ConeEnv,
    ConeRules,
    count_pits,
    optimal_return,
    place_pits,
    reference_returns,
)
from spin_envs.scores import score_name
from spin_envs.tasks import BenchmarkTask
from spin_envs.vector import make_batch


def bits(*moves: int) -> NDArray[np.int64]:
    """The action that moves each dimension by -1, 0 or 1."""
    return np.array([bit for move in moves for bit in (move > 0, move < 0)], dtype=np.int64)


def test_a_step_moves_by_the_bits_and_costs_the_distance_to_the_goal() -> None:
    env = ConeEnv(3, pits=0)
    observation, _ = env.reset(seed=0)
    assert observation.tolist() == [0, 0, 0]
    assert observation.dtype == np.float32
    for action, position in (
        ([1, 0, 0, 1, 1, 1], [1, 0, 0]),  # up; down at the edge; both
        ([0, 0, 1, 0, 1, 0], [1, 1, 1]),
        ([0, 1, 0, 1, 0, 0], [0, 0, 1]),
    ):
        observation, reward, terminated, truncated, _ = env.step(np.array(action))
        assert observation.tolist() == position
        assert reward == pytest.approx(-np.linalg.norm(np.array(position) - 4))
        assert not terminated
        assert not truncated


def test_goal_and_pits_terminate() -> None:
    env = ConeEnv(2, pits=0.0)
    env.reset(seed=0)
    rewards = [env.step(bits(1, 1))[1:3] for _ in range(4)]
    assert rewards[-1] == (10.0, True)
    assert sum(r for r, _ in rewards) == pytest.approx(10 - 6 * 2**0.5)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(bits(1, 1))
    env = ConeEnv(2, pits=1)  # one pit, in the middle
    env.reset(seed=0)
    assert not env.step(bits(1, 1))[2]
    _, reward, terminated, *_ = env.step(bits(1, 1))
    assert reward == pytest.approx(-40 * 2**0.5)
    assert terminated


def test_standing_still_is_truncated_after_100_steps() -> None:
    env = gymnasium.make("spin/cone-v0")
    env.reset(seed=0)
    steps = [env.step(bits(*[0] * 8)) for _ in range(100)]
    assert [s[2:4] for s in steps] == [*[(False, False)] * 99, (False, True)]
    assert sum(float(s[1]) for s in steps) == pytest.approx(-400 * 8**0.5)


@pytest.mark.parametrize(("pits", "n"), [(0, 0), (0.0, 0), (1, 1), (1.0, 81), (0.5, 40), (81, 81)])
def test_pits_are_a_number_or_a_share(pits: float, n: int) -> None:
    assert count_pits(4, pits) == place_pits(4, pits, 3).sum() == n
    assert place_pits(4, pits, 3)[1, 1, 1, 1] == (n > 0)


def test_a_placement_decides_where_pits_are_and_grows_with_their_number() -> None:
    few, many = place_pits(5, 0.1, 1), place_pits(5, 0.5, 1)
    assert (many | ~few).all()
    assert (few == place_pits(5, 0.1, 1)).all()
    assert (few != place_pits(5, 0.1, 2)).any()
    # Uniformly among the others: each is a pit in about half of the placements.
    share = np.mean([place_pits(2, 5, seed) for seed in range(400)], axis=0)
    assert share[1, 1] == 1.0
    others = np.delete(share.ravel(), 4)
    assert np.abs(others - 0.5).max() < 0.1


def test_only_interior_cells_are_pits() -> None:
    rules = ConeRules(3, 1.0, 0)
    cells = np.array(list(itertools.product(range(5), repeat=3)))
    rewards, ends = rules.outcomes(cells)
    inside = ((cells > 0) & (cells < 4)).all(1)
    assert (rewards[inside] == -40 * 3**0.5).all()
    assert ends.tolist() == (inside | (cells == 4).all(1)).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimensions": 1}, "dimensions.*2 to 11, got 1"),
        ({"dimensions": 12}, "dimensions.*2 to 11, got 12"),
        ({"dimensions": 2.0}, "dimensions"),
        ({"dimensions": 3, "pits": 28}, "integer from 0 to 27.*got 28"),
        ({"pits": -1}, "pits.*got -1"),
        ({"pits": 1.5}, "pits.*got 1.5"),
        ({"pits": float("nan")}, "pits.*got nan"),
        ({"pits": True}, "pits.*got True"),
        ({"pits": "half"}, "pits.*got 'half'"),
        ({"pits": None}, "pits.*got None"),
        ({"placement": -1}, "placement.*got -1"),
        ({"placement": 0.5}, "placement"),
        ({"size": 5}, "size.*32 to 4096"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make("spin/cone-v0", **arguments)


def test_arguments_survive_json_with_their_type() -> None:
    numbers: list[Any] = [1, 1.0, np.float64(0.5), np.int64(3)]
    for pits in numbers:
        env = gymnasium.make("spin/cone-v0", pits=pits, placement=np.int64(2))
        assert env.spec is not None
        kwargs = json.loads(env.spec.to_json())["kwargs"]
        assert count_pits(8, kwargs["pits"]) == count_pits(8, pits)
        assert kwargs["placement"] == 2


def test_frames_show_the_first_two_dimensions_where_the_others_are() -> None:
    env = ConeEnv(3, pits=1, render_mode="rgb_array", size=50)
    env.reset(seed=0)

    def middle() -> list[int]:
        frame = env.render()
        assert frame is not None
        assert frame.shape == (50, 50, 3)
        color: list[int] = frame[25, 25].tolist()
        return color

    free = middle()
    env.step(bits(0, 0, 1))
    assert middle() == free
    env.step(bits(0, 0, 1))
    assert middle() != free  # the pit is at (2, 2, 2)


OPTIMA = {  # without pits, with all interior cells
    2: (1.51, -9.60),
    3: (-0.39, -10.97),
    4: (-2.00, -12.21),
    5: (-3.42, -13.34),
    6: (-4.70, -14.39),
    7: (-5.87, -15.38),
    8: (-6.97, -16.32),
}


@pytest.mark.parametrize("dimensions", OPTIMA)
def test_the_optimum_without_pits_and_with_all(dimensions: int) -> None:
    none, every = OPTIMA[dimensions]
    assert optimal_return(ConeRules(dimensions, 0, 0)) == pytest.approx(none, abs=0.006)
    assert optimal_return(ConeRules(dimensions, 0, 0)) == pytest.approx(10 - 6 * dimensions**0.5)
    assert optimal_return(ConeRules(dimensions, 1.0, 0)) == pytest.approx(every, abs=0.006)


def test_the_mean_optimum_of_five_pits() -> None:
    found = [np.mean([optimal_return(ConeRules(d, 5, s)) for s in range(20)]) for d in (2, 3, 4)]
    assert found == pytest.approx([-3.18, -2.90, -4.23], abs=0.006)


@pytest.mark.parametrize(("dimensions", "pits"), [(2, 4), (2, 9), (3, 0.3), (3, 26), (4, 0.6)])
@pytest.mark.parametrize("placement", range(3))
def test_the_optimum_is_what_all_actions_in_all_cells_give(
    dimensions: int, pits: float, placement: int
) -> None:
    rules = ConeRules(dimensions, pits, placement)
    cells = np.array(list(itertools.product(range(5), repeat=dimensions)))
    actions = [bits(*moves) for moves in itertools.product((-1, 0, 1), repeat=dimensions)]
    number = 5 ** np.arange(dimensions)[::-1]
    reached = [rules.move(cells, np.tile(a, (len(cells), 1))) for a in actions]
    outcomes = [rules.outcomes(cells) for cells in reached]
    values = np.zeros(len(cells))  # of as many more steps as are left
    for _ in range(100):
        values = np.max(
            [
                rewards + np.where(ends, 0.0, values[cells @ number])
                for cells, (rewards, ends) in zip(reached, outcomes, strict=True)
            ],
            axis=0,
        )
    assert optimal_return(rules) == pytest.approx(values[0])


def test_the_random_score_is_the_exact_mean_within_its_error() -> None:
    rules = ConeRules(2, 3, 0)
    cells = np.array(list(itertools.product(range(5), repeat=2)))
    actions = list(itertools.product((0, 1), repeat=4))
    values = np.zeros(25)
    for _ in range(100):
        total = np.zeros(25)
        for action in actions:
            reached = rules.move(cells, np.tile(np.array(action), (25, 1)))
            rewards, ends = rules.outcomes(reached)
            total += rewards + np.where(ends, 0.0, values[reached @ [5, 1]])
        values = total / len(actions)
    assert reference_returns(2, 3, 0)[0] == pytest.approx(values[0], rel=0.03)


def test_reference_scores_are_computed_for_any_arguments() -> None:
    scores = reference_scores("spin/cone-d3-p50-s2/mixed-v0")
    assert scores == reference_returns(3, 0.5, 2)
    assert scores == reference_scores("spin/cone-v0", dimensions=3, pits=0.5, placement=2)
    env = gymnasium.make("spin/cone-v0", dimensions=3, pits=14, placement=2)
    assert reference_scores(env) == scores
    assert normalized_score(env, scores[1]) == pytest.approx(100.0)
    # One pit is not all of them.
    one, every = (reference_scores("spin/cone-v0", dimensions=2, pits=p) for p in (1, 1.0))
    assert one is not None
    assert every is not None
    assert one[1] > every[1] + 5
    assert reference_scores("spin/cone-v0", dimensions=2, pits=10) is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "cone-d8-p50"),
        ({"pits": 0}, "cone-d8-p0"),
        ({"pits": 0.0, "placement": 3}, "cone-d8-p0-s3"),
        ({"pits": 1.0}, "cone-d8-p100"),
        ({"pits": 1}, "cone-d8-n1"),
        ({"dimensions": 2, "pits": 0.001}, "cone-d2-p0"),
        ({"dimensions": 3, "pits": 1 / 3, "placement": 10}, "cone-d3-n9-s10"),
        ({"dimensions": 11, "pits": 0.05, "size": 64}, "cone-d11-p5"),
    ],
)
def test_names_of_tasks(arguments: dict[str, Any], name: str) -> None:
    assert score_name("spin/cone-v0", **arguments) == f"spin/{name}"
    task = BenchmarkTask.parse(name)
    assert task.name == name
    named, asked = (
        gymnasium.make(task.env_id, **kwargs).unwrapped for kwargs in (task.env_kwargs, arguments)
    )
    assert isinstance(named, ConeEnv)
    assert isinstance(asked, ConeEnv)
    assert (named._rules.is_pit == asked._rules.is_pit).all()


@pytest.mark.parametrize("pits", ["x", None, True, -1, 1.5])
def test_arguments_of_no_environment_have_no_scores(pits: Any) -> None:
    assert reference_scores("spin/cone-v0", pits=pits) is None


@pytest.mark.parametrize(
    "name",
    [
        "cone-d8",
        "cone-d8-p101",
        "cone-d8-p05",
        "cone-d8-p50-s0",
        "cone-d8-p50-s4294967296",
        "cone-d8-n0",
        "cone-d2-n10",
        "cone-d1-p50",
        "cone-d12-p50",
        "maze-a3-p50",
    ],
)
def test_names_of_no_task(name: str) -> None:
    with pytest.raises(ValueError, match=f"cone-d<dimensions>.*got '{name}'"):
        BenchmarkTask.parse(name)


def test_the_behavior_moves_to_random_neighbors_or_up() -> None:
    policy = load_behavior_policy("cone-d2-p50-mixed")
    rng, n = np.random.default_rng(0), 4000
    for position, ways in (((2, 2), 9), ((0, 4), 4), ((4, 4), 4)):
        x = np.tile(np.array(position, np.float32), (n, 1))
        actions = policy.act(x, [rng] * n)  # type: ignore[union-attr]
        moves = actions[:, 0::2] - actions[:, 1::2]
        assert not (actions[:, 0::2] & actions[:, 1::2]).any()
        assert ((x + moves >= 0) & (x + moves <= 4)).all()
        found, counts = np.unique(moves, axis=0, return_counts=True)
        share = dict(zip(map(tuple, found.tolist()), counts / n, strict=True))
        if position == (2, 2):
            assert len(share) == ways - 1  # it never stays
            assert share.pop((1, 1)) == pytest.approx(0.1 + 0.9 / 8, abs=0.03)
            assert list(share.values()) == pytest.approx([0.9 / 8] * 7, abs=0.03)
        else:  # the edges stop some, so that it may stay
            assert len(share) == ways


def test_instances_step_together_as_alone() -> None:
    envs = make_batch("spin/cone-v0", 3, dimensions=3, pits=0.5, placement=1)
    alone = gymnasium.make("spin/cone-v0", dimensions=3, pits=0.5, placement=1)
    rng = np.random.default_rng(1)
    envs.reset(seed=0)
    alone.reset(seed=0)
    for _ in range(20):
        action = rng.integers(2, size=6)
        observations, rewards, ends, *_ = envs.step(np.tile(action, (3, 1)))
        observation, reward, end, *_ = alone.step(action)
        assert (observations == observation).all()
        assert (rewards == reward).all()
        assert (ends == end).all()
        if end:
            break
    assert reward in (GOAL_REWARD, -40 * 3**0.5) or not end
    envs.close()
