"""Critics that overfit noisy rewards get dropout, and no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from torch import nn

from spin_d3rlpy import SPINIDQL, SPINJoint, from_table
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.critics.overfitting import STEPS_BETWEEN_CHECKS, OverfittingCheck
from spin_d3rlpy.data import DeviceReplayBuffer
from tests.algos.problems import TINY

NVEC = [3, 2, 2]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
STEPS = 6 * STEPS_BETWEEN_CHECKS


def log(noise: float, n: int = 600) -> DeviceReplayBuffer:
    """Single steps that pay for the first slot's choice and by chance."""
    rng = np.random.default_rng(0)
    actions, x = rng.integers(0, NVEC, (n, 3)), rng.normal(size=(n, 4))
    table: dict[Any, Any] = {"episode": np.arange(n)}
    table |= {f"x_{i}": x[:, i] for i in range(4)} | {f"a_{i}": actions[:, i] for i in range(3)}
    table["reward"] = (actions[:, 0] == 0) + noise * rng.normal(size=n)
    columns: dict[str, Any] = {
        "observations": [f"x_{i}" for i in range(4)],
        "actions": [f"a_{i}" for i in range(3)],
    }
    return from_table(
        table, **columns, nvec=NVEC, episode="episode", terminal=True, reward="reward"
    )


def fitted(
    noise: float, n_steps: int = STEPS, folder: Path | None = None, resume: bool = False
) -> SPINIDQL:
    d3rlpy.seed(0)
    algo = SPINIDQL(
        policy=SPINJoint(transformer=TINY, pretraining=PretrainingConfig(max_updates=5)),
        joint_critic=True,
        expectile=0.5,
        held_out_share=0.3,
        short_gammas=[0.0],
        batch_size=64,
        critic_learning_rate=3e-3,
        overfitting_dropout=0.5,
    )
    kept: dict[str, Any] = {"checkpoint_dir": folder, "resume": resume}
    algo.fit(log(noise), n_steps=n_steps, n_steps_per_epoch=STEPS, **kept, **QUIET)
    return algo


@pytest.mark.parametrize(
    ("levels", "risen_at"),
    [
        ([1.0, 0.5, 0.9], 3),  # after half as many steps again as the least took
        ([1.0, 0.8, 0.6, 0.5, 0.9, 0.9, 0.9], 6),  # not before
        ([1.0, 0.8, 0.6, 0.5, 0.9, 0.9, 0.4, 0.3], 6),
        ([1.0, 0.8, 0.6, 0.5, 0.9, 0.4, 0.9, 0.3], None),  # weights that move about
        ([1.0, 0.5, 0.501, 0.503, 0.499, 0.504], None),  # luck
    ],
)
def test_errors_that_surely_rise_are_told_from_luck(
    levels: list[float], risen_at: int | None
) -> None:
    torch.manual_seed(0)
    coming, noise = iter(levels), torch.rand(400)
    check = OverfittingCheck(
        nn.Linear(1, 1), lambda: next(coming) + 0.2 * noise + 0.1 * torch.rand(400)
    )
    told = [check.after_step(STEPS_BETWEEN_CHECKS * i) for i in range(1, len(levels) + 1)]
    assert told == [i == risen_at for i in range(1, len(levels) + 1)]  # once
    assert check.has_risen == (risen_at is not None)
    measured = len(levels) if risen_at is None else risen_at
    assert list(coming) == levels[measured:]  # and not measured any further


def test_the_network_goes_back_to_the_least_errors() -> None:
    network = nn.Linear(1, 1, bias=False)
    check = OverfittingCheck(network, lambda: (network.weight - 0.2).square().detach()[0].expand(9))
    for i, weight in enumerate([1.0, 0.3, 0.6], 1):
        with torch.no_grad():
            network.weight.fill_(weight)
        check.after_step(STEPS_BETWEEN_CHECKS * i)
    assert check.has_risen
    assert network.weight.item() == pytest.approx(0.3)


def test_it_measures_every_so_many_steps() -> None:
    measured = []

    def errors() -> torch.Tensor:
        measured.append(1)
        return torch.ones(4)

    check = OverfittingCheck(nn.Linear(1, 1), errors)
    for step in range(1, STEPS_BETWEEN_CHECKS):
        check.after_step(step)
    assert not measured
    check.after_step(STEPS_BETWEEN_CHECKS)
    assert measured


@pytest.mark.parametrize(("noise", "drops_out"), [(3.0, True), (0.0, False)])
def test_critics_of_noisy_rewards_drop_out_and_others_do_not(noise: float, drops_out: bool) -> None:
    impl: Any = fitted(noise).impl
    assert (impl.dropout_rate == 0.5) == drops_out


def test_a_resumed_run_drops_out_as_the_whole_one_does(tmp_path: Path) -> None:
    whole: Any = fitted(3.0)
    first: Any = fitted(3.0, STEPS - 30, tmp_path)
    assert first.impl.dropout_rate == 0.5
    again: Any = fitted(3.0, folder=tmp_path, resume=True)
    assert again.impl.dropout_rate == 0.5
    for one, other in zip(
        whole.impl.modules.q_funcs.parameters(),
        again.impl.modules.q_funcs.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_errors_are_those_of_returns_by_the_shortest_discount() -> None:
    algo: Any = fitted(0.0, n_steps=1)
    impl, data = algo.impl, log(0.0)
    x, actions = algo.scale(data.transitions(torch.arange(5))).observations, data.actions[:5].long()
    scale = impl.modules.q_funcs.members[0].scale
    impl.modules.set_eval()
    with torch.no_grad():
        values = impl.modules.q_funcs.standardized(impl._slot_layout, x, actions)[:, 1]
    expected = (values - (data.rewards[:5] - scale.mean[1]) / scale.std[1]).square().mean(0)
    assert torch.allclose(impl.errors_of_values(x, actions, data.rewards[None, :5]), expected)
