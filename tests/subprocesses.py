"""Running Python in a process that has imported nothing yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python_with_errors(code: str, *arguments: str) -> tuple[str, str]:
    """Runs `code` with `sys.argv[1:] == arguments`; returns its output and error output."""
    # As pytest's `pythonpath` setting: works with and without an editable installation.
    paths = [str(ROOT), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.strip()


def run_python(code: str, *arguments: str) -> str:
    """Runs `code` with `sys.argv[1:] == arguments`; returns its output."""
    return run_python_with_errors(code, *arguments)[0]
