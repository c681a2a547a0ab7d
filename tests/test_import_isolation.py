from __future__ import annotations

from typing import Any

import pytest

import spin_d3rlpy
from tests.subprocesses import run_python, run_python_with_errors

HEAVY = {"d3rlpy", "dm_control", "minari", "mujoco", "torch"}


def imported_by(package: str) -> set[str]:
    """Which of the heavy packages are loaded by `import package` alone."""
    return set(run_python(f"import sys, {package}\nprint(*sys.modules)").split()) & HEAVY


@pytest.mark.parametrize("module", ["spin_envs", "spin_envs.behavior", "spin_envs.rollout"])
def test_environments_import_nothing_heavy(module: str) -> None:
    assert imported_by(module) == set()


def test_the_package_imports_nothing_heavy_until_a_name_is_used() -> None:
    assert imported_by("spin_d3rlpy") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["data", "--help"]])
def test_help_imports_neither_torch_nor_d3rlpy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom spin_d3rlpy.cli import main\nsys.argv[0] = 'spin-d3rlpy'\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    output = run_python(code, *arguments)
    assert "Usage: spin-d3rlpy" in output
    assert set(output.split()) & {*HEAVY, "structlog"} == set()


def test_completion_imports_neither_torch_nor_d3rlpy() -> None:
    code = "import sys\nfrom spin_d3rlpy.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    variables = {"COMP_WORDS": "spin-d3rlpy tr", "COMP_CWORD": "1"}
    variables["_SPIN_D3RLPY_COMPLETE"] = "complete_bash"
    script = f"import os, sys\nos.environ.update({variables!r})\nsys.argv[0] = 'spin-d3rlpy'\n"
    output = run_python(script + code)
    assert output.split()[0] == "train"
    assert set(output.split()) & HEAVY == set()


def test_every_public_name_is_there_and_typed_tools_see_it() -> None:
    names: dict[str, Any] = {}
    exec("from spin_d3rlpy import *", names)
    assert set(spin_d3rlpy.__all__) <= set(names)
    assert (names["SPINIQL"].__name__, names["IQLConfig"].__name__) == ("SPINIQL", "IQLConfig")


def test_importing_the_algorithms_prints_nothing_and_leaves_torchs_settings_alone() -> None:
    settings = (
        "(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),"
        " torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),"
        " torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.initial_seed())"
    )
    output, errors = run_python_with_errors(
        "import torch\n"
        "torch.set_num_threads(3); torch.set_default_dtype(torch.float64); torch.manual_seed(5)\n"
        f"before = {settings}\n"
        "import spin_d3rlpy\nspin_d3rlpy.SPINIQL\n"
        f"assert {settings} == before, (before, {settings})\n"
        "assert not torch.cuda.is_initialized()"
    )
    assert output == ""
    assert "Gym has been unmaintained" not in errors
