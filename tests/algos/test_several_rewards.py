"""Values by several rewards are learned apart, and added up by any weights without training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardRewardScaler
from gymnasium.spaces import MultiDiscrete

from spin_d3rlpy import (
    SPINIDQL,
    FactoredIDQL,
    FactoredIQL,
    SPINJoint,
    from_table,
    load_policy,
    save_policy,
)
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.policies import Factored
from spin_envs import FlatActions
from tests.algos.problems import TINY
from tests.exported_files import exported_actions

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")
NVEC = [3, 2, 2]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def log(n: int = 900, seed: int = 0, **changes: Any) -> DeviceReplayBuffer:
    """Single steps: `left` pays for 0 in the first slot, `right` for 2."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, NVEC, (n, 3))
    table: dict[Any, Any] = {"episode": np.arange(n), "x": rng.normal(size=n)}
    table |= {f"slot_{i}": actions[:, i] for i in range(3)}
    table["left"] = (actions[:, 0] == 0) * 2.0
    table["right"] = (actions[:, 0] == 2) * 1.0
    arguments: dict[str, Any] = {
        "observations": ["x"],
        "actions": ["slot_0", "slot_1", "slot_2"],
        "nvec": NVEC,
        "episode": "episode",
        "terminal": True,
        "rewards": {"left": "left", "right": "right"},
        "weights": {"left": 1.0, "right": 1.0},
        **changes,
    }
    return from_table(table, **arguments)


def new(**fields: Any) -> SPINIDQL:
    d3rlpy.seed(0)
    pretraining = PretrainingConfig(max_updates=60, batch_size=64, masking="any_order")
    values: dict[str, Any] = {
        "policy": SPINJoint(transformer=TINY, pretraining=pretraining),
        "joint_critic": True,
        "expectile": 0.5,
        "search_sweeps": 1,
        "n_action_samples": 4,
        "held_out_share": 0.2,
        "short_gammas": [0.0],
        "batch_size": 128,
        "critic_learning_rate": 3e-3,
        **fields,
    }
    return SPINIDQL(**values)


@pytest.fixture(scope="module")
def trained() -> SPINIDQL:
    algo = new()
    algo.fit(log(), n_steps=150, n_steps_per_epoch=150, **QUIET)
    return algo


STATES = np.linspace(-2.0, 2.0, 41, dtype=np.float32)[:, None]


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        ({"left": 1.0}, 0),
        ({"right": 1.0}, 2),
        ({"left": 1.0, "right": 5.0}, 2),
        ({"left": 1.0, "right": 1.0}, 0),
        ({"left": -1.0, "right": -1.0}, 1),
    ],
)
def test_one_training_serves_all_weights(
    trained: SPINIDQL, weights: dict[str, float], first: int
) -> None:
    algo = trained.with_weights(weights)
    assert algo.trust is not None
    assert dataclasses.replace(algo.trust, likeliest_gain=0.0).acts_by == "search"
    if first != 2:  # which is the most likely one of random choices, so that imitation is as good
        assert algo.trust.acts_by == "search"
    assert set(algo.predict(STATES)[:, 0]) == {first}


def test_the_one_that_it_was_made_of_acts_as_before(trained: SPINIDQL) -> None:
    before, trust = trained.predict(STATES), trained.trust
    trained.flat_actions = FlatActions(MultiDiscrete(NVEC, start=[1, 1, 1]))
    other = trained.with_weights({"right": 1.0})
    for known in ("flat_actions", "preparation"):
        assert getattr(other, known) == getattr(trained, known) is not None
    assert np.array_equal(trained.predict(STATES), before)
    assert trained.trust == trust
    assert trust is not None
    assert not trust.is_sequential


def test_values_add_up() -> None:
    algo = new()
    data = log()
    algo.build_with_dataset(data)
    x = torch.from_numpy(STATES)
    actions = torch.randint(2, (len(x), 3))

    def values(**weights: float) -> torch.Tensor:
        weighed = algo.with_weights(weights, data)
        return weighed.require_built().values_by_gamma(x, actions)

    both = 2.0 * values(left=1.0) - 3.0 * values(right=1.0)
    torch.testing.assert_close(values(left=2.0, right=-3.0), both, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_spread_is_that_of_the_weighted_returns(trained: SPINIDQL) -> None:
    held_out = log(seed=1)
    for weights in ({"left": 1.0}, {"left": 1.0, "right": 2.0}, {"left": 0.5, "right": -1.0}):
        algo = trained.with_weights(weights, held_out)
        expected = float(trained._as_buffer(log()).with_weights(weights).rewards.std())
        assert algo.trust is not None
        assert algo.trust.spread == pytest.approx(expected, rel=0.05)


def test_files_act_by_the_weights(trained: SPINIDQL, tmp_path: Path) -> None:
    algo = trained.with_weights({"right": 1.0})
    expected = algo.predict(STATES)
    assert set(expected[:, 0]) == {2}
    save_policy(algo, tmp_path / "policy.safetensors")
    assert np.array_equal(load_policy(tmp_path / "policy.safetensors").predict(STATES), expected)
    algo.save_policy(path := str(tmp_path / "policy.pt"))
    assert np.array_equal(exported_actions(path, observations=STATES), expected)


def test_a_loaded_algorithm_is_weighed_with_data(trained: SPINIDQL, tmp_path: Path) -> None:
    trained.save(str(tmp_path / "algo.d3"))
    loaded = d3rlpy.load_learnable(str(tmp_path / "algo.d3"))
    assert isinstance(loaded, SPINIDQL)
    with pytest.raises(ValueError, match="pass dataset= with episodes"):
        loaded.with_weights({"right": 1.0})
    algo = loaded.with_weights({"right": 1.0}, log(seed=1))
    assert set(algo.predict(STATES)[:, 0]) == {2}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"up": 1.0}, "Expected weights of 'left', 'right'.*got one of 'up'"),
        ({"left": float("inf")}, "finite numbers; got inf of 'left'"),
        ({}, "at least one of them other than 0"),
    ],
)
def test_wrong_weights_are_refused(
    trained: SPINIDQL, weights: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trained.with_weights(weights)


def test_other_data_are_refused(trained: SPINIDQL) -> None:
    one = {"rewards": None, "weights": None, "reward": "left"}
    other = {"rewards": {"right": "right", "left": "left"}}
    for changes, got in ((one, "got one reward"), (other, "got 'right', 'left'")):
        with pytest.raises(InvalidDatasetError, match=f"rewards 'left', 'right'.*{got}"):
            trained.fit(log(**changes), n_steps=1, n_steps_per_epoch=1, **QUIET)


def test_weights_of_the_config_go_before_the_data_s() -> None:
    algo = new(reward_weights={"left": 0.0, "right": 1.0})
    algo.fit(log(), n_steps=100, n_steps_per_epoch=100, **QUIET)
    assert set(algo.predict(STATES)[:, 0]) == {2}


@pytest.mark.parametrize(
    "fields",
    [{"expectile": 0.8}, {"reward_scaler": StandardRewardScaler(0.0, 1.0)}],
    ids=["expectile", "scaler"],
)
def test_values_that_do_not_add_up_are_those_of_the_weighted_sum(fields: dict[str, Any]) -> None:
    algo = new(**fields)
    algo.fit(log(), n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert algo.config.reward_weights is None
    with pytest.raises(ValueError, match="Expected an algorithm that learned values by several"):
        algo.with_weights({"left": 1.0})
    with pytest.raises(ValueError, match="reward_weights"):
        new(**fields, reward_weights={"left": 1.0, "right": 1.0})


@pytest.mark.parametrize("algo_class", [SPINIDQL, FactoredIDQL])
def test_the_tuned_recipe_learns_them_apart(algo_class: Any) -> None:
    algo = algo_class(recipe="tuned")
    algo.build_with_dataset(log(200))
    assert algo.config.reward_weights == {"left": 1.0, "right": 1.0}


def test_other_algorithms_learn_by_the_weighted_sum() -> None:
    d3rlpy.seed(0)
    algo = FactoredIQL(batch_size=128, policy=Factored())
    data = log(weights={"left": 0.0, "right": 1.0})
    algo.fit(data, n_steps=150, n_steps_per_epoch=150, **QUIET)
    assert np.mean(algo.predict(STATES)[:, 0] == 2) > 0.9
