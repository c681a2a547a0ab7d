"""Every example runs with a small budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subprocesses import ROOT

BUDGETS = {
    "first_policy.py": ["--size", "2000", "--pretraining-updates", "2", "--steps", "2"],
}


def test_every_example_has_a_budget() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == BUDGETS.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    env = {**os.environ, "MINARI_DATASETS_PATH": str(tmp_path / "datasets")}
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *BUDGETS[name]],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        timeout=250,
    )
    assert (tmp_path / "policy.d3").exists()
    assert (tmp_path / "asm.safetensors").exists()
