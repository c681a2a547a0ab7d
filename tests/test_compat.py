"""Each workaround does what it says, and fails here when the host no longer needs it."""

from __future__ import annotations

import dataclasses
import os
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
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from packaging.version import Version

from spin_d3rlpy._compat import (
    DiscreteView,
    advance_schedule,
    cpu_multiplies_bfloat16,
    fuse_adam,
    log_folders,
    step_without_schedule,
)
from tests.subprocesses import run_python, run_python_with_errors

DRAW = "from dm_control import suite; suite.load('pendulum', 'swingup').physics.render(8, 8)"


@pytest.mark.slow
def test_triton_is_imported_before_dm_control(tmp_path: Path) -> None:
    """d3rlpy imports dm_control where Shimmy is installed."""
    code = "import spin_d3rlpy.algos"
    (tmp_path / "triton.py").write_text("import sys; print('dm_control' in sys.modules)")
    assert run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}") == "False"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="needs Linux")
def test_triton_after_dm_control_is_bound_to_itself(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("import sys; print(sys.getdlopenflags())")
    during, before, after = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "before = sys.getdlopenflags()\n"
        "import dm_control, spin_d3rlpy.algos\n"
        "print(before, sys.getdlopenflags())"
    ).split()
    assert int(during) == int(before) | os.RTLD_DEEPBIND
    assert after == before


def _needs_triton_and_mesa() -> None:
    pytest.importorskip("triton", "3.9", reason="needs triton of torch 2.15")
    if os.environ.get("MUJOCO_GL") != "egl" or torch.cuda.is_available():
        pytest.skip("needs EGL of Mesa: NVIDIA's has no LLVM")


@pytest.mark.parametrize(
    "before",
    [
        "import spin_d3rlpy.algos",
        "import d3rlpy, spin_d3rlpy",
        f"{DRAW}\nimport spin_d3rlpy.algos",
    ],
)
def test_triton_works_beside_graphics(before: str) -> None:
    _needs_triton_and_mesa()
    run_python(f"{before}\n{DRAW}\nimport torch._inductor, triton\n{DRAW}")


def test_triton_after_graphics_still_ends_the_process() -> None:
    """Why triton is imported first, see `spin_d3rlpy._import_order`."""
    _needs_triton_and_mesa()
    code = [sys.executable, "-c", f"{DRAW}\nimport triton"]
    assert subprocess.run(code, capture_output=True).returncode < 0


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


@pytest.mark.slow
def test_d3rlpys_onnx_export_still_fails(tmp_path: Path) -> None:
    """Why there is `export_onnx`."""
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((3,), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception):  # noqa: B017, PT011
            algo.save_policy(str(tmp_path / "policy.onnx"))


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.13"), reason="older versions of torch do not"
)
def test_tracing_still_warns(tmp_path: Path) -> None:
    """Why there is `quiet_tracing`."""
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((3,), 2)
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit"):
        algo.save_policy(str(tmp_path / "policy.pt"))


@pytest.mark.slow
def test_d3rlpys_import_still_prints() -> None:
    """Why there is `spin_d3rlpy._quiet_import`."""
    output, errors = run_python_with_errors("import d3rlpy")
    assert "Register Shimmy environments" in output
    assert "Gym has been unmaintained" in errors


def test_d3rlpys_runs_still_write_into_each_others_folder(tmp_path: Path) -> None:
    """Why there is `log_folders`."""
    for value in (1.0, 2.0):
        logger = d3rlpy.logging.D3RLPyLogger(
            d3rlpy.algos.DQNConfig().create(),
            d3rlpy.logging.FileAdapterFactory(str(tmp_path)),
            "run_20261121000000",
            n_steps_per_epoch=1,
            with_timestamp=False,
        )
        logger.adapter.write_metric(1, 1, "loss", value)
    assert (tmp_path / "run_20261121000000" / "loss.csv").read_text() == "1,1,1.0\n1,1,2.0\n"


def test_log_folders_are_those_that_d3rlpy_makes(tmp_path: Path) -> None:
    files = d3rlpy.logging.FileAdapterFactory(str(tmp_path / "files"))
    board = d3rlpy.logging.TensorboardAdapterFactory(str(tmp_path / "board"))
    factory = d3rlpy.logging.CombineAdapterFactory([files, board])
    folders = log_folders(factory, "run")
    assert len(folders) == 2
    factory.create(d3rlpy.algos.DQNConfig().create(), "run", 1).close()
    assert all(folder.is_dir() for folder in folders)
    assert log_folders(d3rlpy.logging.NoopAdapterFactory(), "run") == []


def test_d3rlpys_optimizer_still_advances_its_schedule_by_itself() -> None:
    """Why there are `step_without_schedule` and `advance_schedule`."""
    net = torch.nn.Linear(7, 3)
    schedule = CosineAnnealingLRFactory(T_max=4)
    factory = AdamFactory(lr_scheduler_factory=schedule)
    optim = factory.create(net.named_modules(), lr=0.01, compiled=False)

    def rate() -> float:
        return float(optim.optim.param_groups[0]["lr"])

    net(torch.ones(2, 7)).sum().backward()
    step_without_schedule(optim)
    assert rate() == 0.01
    advance_schedule(optim)
    advanced = rate()
    assert advanced < 0.01
    optim.step()
    assert rate() < advanced


def test_a_processor_told_to_be_plainer_multiplies_no_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for capability, expected in {"AVX512": True, "AVX2": False, "DEFAULT": False}.items():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        assert cpu_multiplies_bfloat16() is expected


def test_torch_still_has_no_public_question_for_bfloat16_units() -> None:
    """Why `cpu_multiplies_bfloat16` asks private functions."""
    public = [name for name in dir(torch.cpu) if not name.startswith("_")]
    assert not [name for name in public if "bf16" in name or "amx" in name]
