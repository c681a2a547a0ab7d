"""Each workaround does what it says, and fails here when the host no longer needs it."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import d3rlpy
import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.optimizers import AdamFactory, AdamWFactory, SGDFactory

from spin_d3rlpy._compat import DiscreteView, fuse_adam


@pytest.mark.parametrize("factory_class", [AdamFactory, AdamWFactory])
def test_fused_adam_makes_the_same_steps(factory_class: type[AdamFactory]) -> None:
    outcomes = []
    for fused in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Linear(7, 3)
        optim = factory_class(weight_decay=0.1).create(net.named_modules(), lr=0.01, compiled=False)
        if fused:
            fuse_adam(optim)
            assert optim.optim.param_groups[0]["fused"]
        for _ in range(5):
            optim.zero_grad()
            net(torch.ones(2, 7)).square().sum().backward()
            optim.step()
        outcomes.append(net.weight.detach())
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_other_optimizers_are_left_alone() -> None:
    net = torch.nn.Linear(7, 3)
    optim = SGDFactory().create(net.named_modules(), lr=0.01, compiled=False)
    groups = [dict(group) for group in optim.optim.param_groups]
    assert fuse_adam(optim) is optim
    assert optim.optim.param_groups == groups


def test_d3rlpys_adam_still_has_no_fused_option() -> None:
    assert "fused" not in {field.name for field in dataclasses.fields(AdamFactory)}


def test_d3rlpys_loop_still_drops_steps_that_do_not_fill_an_epoch() -> None:
    """Why `fitter` has a loop of its own."""
    algo = d3rlpy.algos.DQNConfig(batch_size=4).create()
    buffer = d3rlpy.dataset.ReplayBuffer(
        d3rlpy.dataset.InfiniteBuffer(),
        episodes=[
            d3rlpy.dataset.Episode(
                torch.zeros(9, 3).numpy(),
                torch.arange(9)[:, None].numpy() % 2,
                torch.zeros(9, 1).numpy(),
                terminated=True,
            )
        ],
    )
    adapter = d3rlpy.logging.NoopAdapterFactory()
    assert algo.fit(buffer, n_steps=5, show_progress=False, logger_adapter=adapter) == []


def test_d3rlpy_still_knows_no_multidiscrete_environment() -> None:
    """Why there is `DiscreteView`."""
    env = gymnasium.Env()  # type: ignore[var-annotated]
    env.action_space = gymnasium.spaces.MultiDiscrete([3, 5, 2])
    env.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (7,))
    with pytest.raises(ValueError, match="Unsupported action_space"):
        d3rlpy.dataset.create_fifo_replay_buffer(10, env=env)
    buffer = d3rlpy.dataset.create_fifo_replay_buffer(10, env=DiscreteView(env))
    assert buffer.dataset_info.action_signature.shape == [(3,)]


def test_the_view_keeps_samples_and_membership() -> None:
    env = gymnasium.Env()  # type: ignore[var-annotated]
    env.action_space = gymnasium.spaces.MultiDiscrete([3, 5, 2], seed=0)
    view = DiscreteView(env)
    samples = np.array([view.action_space.sample() for _ in range(200)])
    assert samples.max(0).tolist() == [2, 4, 1]
    assert view.action_space.contains(np.array([2, 4, 1]))
    assert not view.action_space.contains(np.array([2, 4, 2]))


def test_d3rlpys_onnx_export_still_fails(tmp_path: Path) -> None:
    """Why there is `export_onnx`."""
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((3,), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception):  # noqa: B017, PT011
            algo.save_policy(str(tmp_path / "policy.onnx"))


def test_tracing_still_warns(tmp_path: Path) -> None:
    """Why there is `quiet_tracing`."""
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((3,), 2)
    with pytest.warns(DeprecationWarning, match="jit"):
        algo.save_policy(str(tmp_path / "policy.pt"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_and_used_again() -> None:
    """Counts page faults of allocating and freeing the same array in a process of its own."""
    code = (
        "import resource, sys, torch\n"
        "from spin_d3rlpy._compat import keep_freed_memory\n"
        "if sys.argv[1] == 'keep':\n"
        "    keep_freed_memory()\n"
        "def step():\n"
        "    arrays = [torch.ones(2**20) for _ in range(8)]\n"
        "for _ in range(5):\n"
        "    step()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(5):\n"
        "    step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", code, mode], capture_output=True, text=True, check=True
            ).stdout.split()[-1]
        )
        for mode in ("keep", "give_back")
    }
    assert faults["keep"] < faults["give_back"] / 10
