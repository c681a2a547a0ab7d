"""Every example runs with a small budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subprocesses import ROOT

SHORT = ["--size", "2000", "--pretraining-updates", "2", "--steps", "2"]
# Arguments that make an example short, and what it leaves behind.
RUNS = {
    "first_policy.py": [(SHORT, ["policy.d3", "asm.safetensors"])],
    "fine_tune_online.py": [([*SHORT, "--online-steps", "3"], ["policy.d3"])],
    "swap_in.py": [
        (["--data-steps", "300", "--steps", "4", *before], ["policy.d3"])
        for before in ([], ["--before"])
    ],
}


def test_every_example_runs_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == RUNS.keys()


@pytest.mark.parametrize(
    ("name", "arguments", "files"),
    [(name, *run) for name, runs in RUNS.items() for run in runs],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_example_runs(name: str, arguments: list[str], files: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "MINARI_DATASETS_PATH": str(tmp_path / "datasets")}
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        timeout=250,
    )
    for file in files:
        assert (tmp_path / file).exists()
