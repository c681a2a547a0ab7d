"""Critics that learn distributions of returns over bins."""

from __future__ import annotations

from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, FactoredIDQL, from_table
from spin_d3rlpy.critics.return_bins import CAUTION, ReturnBins, careful_mean
from spin_d3rlpy.data import DeviceReplayBuffer

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NVEC = [3, 2, 2]


def test_distributions_of_returns() -> None:
    bins = ReturnBins(2, 41)
    bins.fit(torch.tensor([[-1.0, 1.0], [-10.0, 4.0]]))
    assert bins.edges[0, [0, -1]].tolist() == pytest.approx([-1.2, 1.2])
    logits = torch.zeros(1, 2 * 41, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.1)
    targets = torch.tensor([[0.3], [-10.0]])  # the least of the data's is met, too
    for _ in range(400):
        optimizer.zero_grad()
        bins.cross_entropy(logits, targets).backward()
        optimizer.step()
    means = bins.means(logits)
    assert means[:, 0].tolist() == pytest.approx([0.3, -10.0], abs=0.05)


def test_a_careful_mean_takes_off_what_is_not_sure() -> None:
    middles = torch.tensor([-100.0, 0.0])
    sure, unsure = torch.tensor([[-50.0, 50.0], [0.0, 0.0]]), torch.tensor([0.0, -50.0])
    means = careful_mean(sure, middles)
    assert means[0].item() == pytest.approx(0.0, abs=1e-3)
    assert means[1].item() == pytest.approx(unsure[1].item() - CAUTION * 50.0)


def log(disasters: float = 0.0, n: int = 1500, several: bool = False) -> DeviceReplayBuffer:
    """Single steps that pay for the first slot's choice; some end in a disaster, by chance."""
    rng = np.random.default_rng(0)
    actions, x = rng.integers(0, NVEC, (n, 3)), rng.normal(size=(n, 2))
    table: dict[Any, Any] = {"episode": np.arange(n), "x_0": x[:, 0], "x_1": x[:, 1]}
    table |= {f"a_{i}": actions[:, i] for i in range(3)}
    table["paid"] = (actions[:, 0] == 0) - 50.0 * (rng.random(n) < disasters)
    table["other"] = 1.0 * (actions[:, 1] == 0)
    columns: Any = {"observations": ["x_0", "x_1"], "actions": ["a_0", "a_1", "a_2"]}
    reward: Any = {"reward": "paid"}
    if several:
        reward = {
            "rewards": {"paid": "paid", "other": "other"},
            "weights": {"paid": 1.0, "other": 1.0},
        }
    return from_table(table, **columns, **reward, nvec=NVEC, episode="episode", terminal=True)


def algorithm(kind: Any = SPINIDQL, **fields: Any) -> Any:
    d3rlpy.seed(0)
    return kind(recipe="tuned", **fields)


@pytest.mark.parametrize("kind", [SPINIDQL, FactoredIDQL])
@pytest.mark.parametrize(
    ("fields", "several", "n_bins"),
    [
        ({}, False, 21),
        ({"return_bins": 0}, False, None),
        ({"expectile": 0.7}, False, None),
        ({}, True, None),  # means of several rewards add up
    ],
)
def test_critics_of_one_reward_learn_distributions(
    kind: Any, fields: dict[str, Any], several: bool, n_bins: int | None
) -> None:
    algo = algorithm(kind, **fields)
    algo.build_with_dataset(log(several=several))
    modules = algo.impl.modules
    found = [None if q.bins is None else q.bins.n_bins for q in modules.q_funcs.members]
    assert found == [n_bins, n_bins]
    rate = algo.config.critic_learning_rate * (1.0 if n_bins is None else 2.0)
    assert modules.critic_optim.optim.param_groups[0]["lr"] == rate


def test_one_bin_tells_nothing() -> None:
    with pytest.raises(ValueError, match="return_bins 0, or 2 or more, got 1"):
        algorithm(return_bins=1)


@pytest.mark.slow
def test_rare_disasters_hardly_move_the_values_of_other_actions() -> None:
    x = np.random.default_rng(1).normal(size=(200, 2)).astype(np.float32)
    pays, does_not = (np.tile([a, 0, 0], (200, 1)) for a in (0, 1))
    found = {}
    for n_bins in (0, 21):
        algo = algorithm(return_bins=n_bins, short_gammas=[], overfitting_dropout=0.0)
        algo.config.policy.pretraining.max_updates = 5
        algo.fit(log(disasters=0.02), n_steps=300, n_steps_per_epoch=300, **QUIET)
        gain = algo.predict_value(x, pays) - algo.predict_value(x, does_not)  # 1 in truth
        found[n_bins] = float(np.abs(gain - 1.0).mean())
    assert found[21] < 0.6 * found[0]
