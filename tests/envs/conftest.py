from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def renders() -> bool:
    """Whether dm_control can draw on this machine, asked in a process of its own.

    A graphics back-end that is missing may abort the process that asks.
    """
    code = "from dm_control import suite; suite.load('pendulum', 'swingup').physics.render(8, 8)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
