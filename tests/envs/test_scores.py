from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from spin_envs import normalized_score, reference_scores, register_reference_scores
from spin_envs.scores import PUBLISHED_SCORES, _registered, score_name

CHEETAH = "spin/cheetah-run-v0"


@pytest.fixture(autouse=True)
def _clean_table() -> Iterator[None]:
    yield
    _registered.clear()


def test_random_scores_zero_and_expert_a_hundred() -> None:
    for name, (low, high) in PUBLISHED_SCORES.items():
        assert normalized_score(name, low) == 0.0
        assert normalized_score(name, high) == pytest.approx(100.0)


def test_every_published_name_is_that_of_an_environment() -> None:
    for name in PUBLISHED_SCORES:
        task, _, number = name.rpartition("-")
        key = "actuators" if number[0] == "a" else "bins"
        assert f"{task}-v0" in gymnasium.registry
        assert score_name(f"{task}-v0", **{key: int(number[1:])}) == name


def test_scores_are_linear_in_the_return_and_take_arrays() -> None:
    returns = np.array([5.39, 334.98, 664.57, 1323.75])
    np.testing.assert_allclose(normalized_score(CHEETAH, returns, bins=3), [0.0, 50, 100, 200])


def test_scores_depend_on_the_arguments() -> None:
    assert reference_scores("spin/dog-trot-v0", bins=10) == (6.48, 736.95)
    assert reference_scores("spin/dog-trot-v0", bins=3) == (7.32, 724.37)
    assert reference_scores("spin/maze-v0", actuators=3) == (-1.76, 99.22)
    assert reference_scores("spin/walker-walk-v0", bins=3) == (44.6, 900.3)
    assert reference_scores("spin/walker-run-v0", bins=3) == (25.7, 701.2)
    assert reference_scores("spin/quadruped-run-v0", bins=3) == (149.8, 753.4)
    assert reference_scores("spin/quadruped-run-v0", bins=10) is None


@pytest.mark.parametrize(
    ("env_id", "kwargs", "name"),
    [
        (CHEETAH, {}, "spin/cheetah-run-b3"),
        ("spin_envs:" + CHEETAH, {"bins": 5}, "spin/cheetah-run-b5"),
        (CHEETAH, {"bins": [3, 3, 3, 3, 3, 3]}, "spin/cheetah-run-b3"),
        (CHEETAH, {"bins": 3, "render_mode": "rgb_array", "width": 8}, "spin/cheetah-run-b3"),
        (CHEETAH, {"bins": [2, 3, 3, 3, 3, 3]}, CHEETAH + ' {"bins": [2, 3, 3, 3, 3, 3]}'),
        ("spin/maze-v0", {}, "spin/maze-a10"),
        ("spin/maze-v0", {"actuators": 7}, "spin/maze-a7"),
        ("spin/cheetah-run-b3", {}, "spin/cheetah-run-b3"),
        ("spin/cheetah-run-b30/medium-expert-20k-v0", {}, "spin/cheetah-run-b30"),
        ("spin/maze-a7/expert-v0", {}, "spin/maze-a7"),
        ("Pendulum-v1", {}, "Pendulum-v1"),
        (
            "spin/discretized-v0",
            {"env_id": "Pendulum-v1", "bins": 5},
            'spin/discretized-v0 {"bins": 5, "env_id": "Pendulum-v1"}',
        ),
    ],
)
def test_ids_and_dataset_names_name_the_same_task(
    env_id: str, kwargs: dict[str, Any], name: str
) -> None:
    assert score_name(env_id, **kwargs) == name


def test_environments_are_named_by_their_spec() -> None:
    env = gymnasium.make("spin/maze-v0", actuators=5)
    assert score_name(env) == score_name(env.unwrapped) == "spin/maze-a5"
    assert normalized_score(env, 99.34) == pytest.approx(100.0)
    batch = gymnasium.make_vec("spin/maze-v0", num_envs=2, actuators=5)
    assert score_name(batch) == "spin/maze-a5"
    assert score_name(gymnasium.make("spin/pendulum-swingup-v0")) == "spin/pendulum-swingup-b3"


def test_what_has_no_name_is_refused() -> None:
    env = gymnasium.make("spin/maze-v0").unwrapped
    env.spec = None
    with pytest.raises(ValueError, match=r"made by gymnasium\.make"):
        score_name(env)
    with pytest.raises(ValueError, match="is complete"):
        score_name("spin/cheetah-run-b3", bins=4)


def test_unknown_scores_are_none_or_an_error_that_says_what_to_do() -> None:
    assert reference_scores(CHEETAH, bins=5) is None
    with pytest.raises(KeyError, match=r"spin/cheetah-run-b5\. Known: spin/finger-spin-b3.*regist"):
        normalized_score(CHEETAH, 1.0, bins=5)


def test_own_scores_can_be_registered_for_any_environment() -> None:
    register_reference_scores(CHEETAH, bins=5, random=0.0, expert=50.0)
    assert normalized_score("spin/cheetah-run-b5/medium-v0", 25.0) == 50.0
    register_reference_scores("spin/cheetah-run-b3", random=100.0, expert=0.0)
    assert normalized_score(CHEETAH, 100.0) == 0.0
    kwargs: dict[str, Any] = {"env_id": "Pendulum-v1", "bins": 5}
    register_reference_scores("spin/discretized-v0", random=-1200.0, expert=-200.0, **kwargs)
    env = gymnasium.make("spin/discretized-v0", **kwargs)
    assert normalized_score(env, -700.0) == 50.0


@pytest.mark.parametrize("scores", [(1.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_impossible_scores_are_refused(scores: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="two different finite returns"):
        register_reference_scores("mine", random=scores[0], expert=scores[1])
