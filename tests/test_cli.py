from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from spin_d3rlpy import __version__
from spin_d3rlpy.cli import app, main


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.output


def test_help_names_every_command() -> None:
    text = run("--help")
    for command in ("demo", "data", "behaviour", "info"):
        assert command in text


def test_data_list_names_what_can_be_built() -> None:
    names = run("data", "list").split()
    for level in ("medium", "expert", "medium-expert", "random-medium-expert"):
        assert f"spin/cheetah-run-b3/{level}-v0" in names


def test_info_shows_versions() -> None:
    text = run("info")
    assert f"spin-d3rlpy {__version__}" in text
    assert "d3rlpy 2.8" in text


def test_bad_input_is_one_line_on_stderr_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["spin-d3rlpy", "data", "build", "spin/cheetah-run-b3/export-v0"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: No dataset 'spin/cheetah-run-b3/export-v0'")
    assert "spin/cheetah-run-b3/expert-v0" in error


def test_verbose_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["spin-d3rlpy", "-v", "demo", "--preset", "huge"])
    with pytest.raises(ValueError, match="cpu-small"):
        main()


def test_the_installed_command_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from spin_d3rlpy.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MultiDiscrete" in result.stdout
