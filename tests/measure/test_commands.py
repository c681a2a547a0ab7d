"""Every measurement is a command that says what it does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

COMMANDS = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text() and not path.stem.startswith("test_")
)


def test_there_are_measurements() -> None:
    assert {"speed", "soak", "kills", "memory", "loading", "vector_speed"} <= {*COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_is_measured(name: str) -> None:
    app = typer.Typer()
    app.command()(importlib.import_module(f"tests.measure.{name}").main)
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "--out" in result.stdout
