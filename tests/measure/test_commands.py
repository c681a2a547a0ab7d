"""Every measurement is a command that says what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subprocesses import import_path

COMMANDS = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text() and not path.stem.startswith("test_")
)


def test_there_are_measurements() -> None:
    assert {"speed", "soak", "kills", "memory", "loading", "vector_speed"} <= {*COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_is_measured(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.measure.{name}", "--help"],
        env={**os.environ, "PYTHONPATH": import_path()},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--out" in done.stdout
