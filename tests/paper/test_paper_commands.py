"""`python -m examples.paper`: what its commands take, and how they refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.paper.__main__ import app
from spin_d3rlpy.cli.program import run_program


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_experiments_are_listed() -> None:
    assert "Returns under IQL" in run("list")


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    first = run("run", "early", "--preset", "smoke", "--seeds", "2", "--print-config")
    (tmp_path / "paper.yaml").write_text(first)
    command = ["run", "--config", tmp_path / "paper.yaml", "--print-config"]
    assert run(*command) == first
    changed = run(*command, "--set", "transformer.width=4", "--task", "cheetah")
    assert "width: 4" in changed
    assert "seeds: 2" in changed
    assert "- cheetah" in changed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["erly"], "Near matches: early"),
        (["early", "--set", "n_stps=1"], "Near matches: n_steps"),
        (["early", "--task", "nowhere-run"], "No cell matches"),
    ],
)
def test_user_errors_end_with_exit_code_2_and_say_what_to_do(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["examples.paper", "run", *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_program(app)
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err
