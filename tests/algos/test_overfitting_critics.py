"""Critics that overfit noisy rewards get dropout, and no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, SPINJoint, from_table
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.data import DeviceReplayBuffer, TrajectoryWeights
from spin_d3rlpy.training import overfitting
from spin_d3rlpy.training.loop import Run
from tests.algos.problems import TINY

NVEC = [3, 2, 2]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
STEPS = 500  # errors rise in the first half


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
    noise: float,
    n_steps: int = STEPS,
    folder: Path | None = None,
    resume: bool = False,
    **fields: Any,
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
        tau=0.05,  # averages follow within few steps
        overfitting_dropout=0.5,
        **fields,
    )
    kept: dict[str, Any] = {"checkpoint_dir": folder, "resume": resume}
    with mock.patch.object(overfitting, "STEPS_BETWEEN_CHECKS", 50):
        algo.fit(log(noise), n_steps=n_steps, n_steps_per_epoch=STEPS, **kept, **QUIET)
    return algo


@pytest.mark.parametrize(
    ("noise", "drops_out"), [(3.0, True), pytest.param(0.0, False, marks=pytest.mark.slow)]
)
def test_critics_of_noisy_rewards_drop_out_and_others_do_not(noise: float, drops_out: bool) -> None:
    impl: Any = fitted(noise).impl
    assert (impl.dropout_rate == 0.5) == drops_out


@pytest.mark.slow
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
        values = impl.modules.targ_q_funcs.standardized(impl._slot_layout, x, actions)[:, 1]
    expected = (values - (data.rewards[:5] - scale.mean[1]) / scale.std[1]).square().mean(0)
    assert torch.allclose(impl.errors_of_values(x, actions, data.rewards[None, :5]), expected)


@pytest.mark.parametrize("temperature", [None, 0.05])
def test_structure_models_are_checked_where_trajectories_are_drawn_alike(
    temperature: float | None,
) -> None:
    algo = SPINIDQL(
        policy=SPINJoint(transformer=TINY),
        held_out_share=0.3,
        trajectory_weights=TrajectoryWeights(temperature=temperature),
    )
    data = log(1.0)
    algo.build_with_dataset(data)
    training = algo.hold_out(data)
    held_out = algo.stage_context(training, Run()).held_out
    if temperature is not None:
        assert held_out is None
    else:
        assert held_out is not None
        assert held_out.transition_count + training.transition_count == data.transition_count
