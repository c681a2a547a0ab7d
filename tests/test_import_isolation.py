from __future__ import annotations

import pytest

from tests.subprocesses import run_python, run_python_with_errors

HEAVY = {"d3rlpy", "dm_control", "minari", "mujoco", "torch"}


def imported_by(package: str) -> set[str]:
    """Which of the heavy packages are loaded by `import package` alone."""
    return set(run_python(f"import sys, {package}\nprint(*sys.modules)").split()) & HEAVY


@pytest.mark.parametrize("module", ["spin_envs", "spin_envs.behavior", "spin_envs.rollout"])
def test_environments_import_nothing_heavy(module: str) -> None:
    assert imported_by(module) == set()


def test_the_check_above_can_fail() -> None:
    assert imported_by("spin_d3rlpy") >= {"d3rlpy", "torch"}


def test_importing_the_algorithms_prints_nothing() -> None:
    output, errors = run_python_with_errors("import spin_d3rlpy")
    assert output == ""
    assert "Gym has been unmaintained" not in errors


def test_d3rlpy_still_announces_shimmy() -> None:
    """Why `import_d3rlpy_quietly` is there."""
    pytest.importorskip("shimmy", reason="needs Shimmy: pip install 'spin-d3rlpy[shimmy]'")
    assert "Shimmy" in run_python("import d3rlpy")


def test_gyms_notice_is_still_there_to_silence() -> None:
    _, errors = run_python_with_errors("import d3rlpy")
    assert "Gym has been unmaintained" in errors


def test_importing_the_algorithms_leaves_torchs_settings_alone() -> None:
    settings = (
        "(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),"
        " torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),"
        " torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.initial_seed())"
    )
    run_python(
        "import torch\n"
        "torch.set_num_threads(3); torch.set_default_dtype(torch.float64); torch.manual_seed(5)\n"
        f"before = {settings}\n"
        "import spin_d3rlpy\n"
        f"assert {settings} == before, (before, {settings})\n"
        "assert not torch.cuda.is_initialized()"
    )
