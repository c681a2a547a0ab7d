from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest
import typer
from typer.testing import CliRunner

from spin_d3rlpy import __version__
from spin_d3rlpy.cli import app, info, main
from spin_d3rlpy.cli.options import parse_arguments
from spin_d3rlpy.cli.program import EXAMPLES
from tests.cli.commands import parse, spin_arguments


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.output


def call(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Runs the program as the shell does; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["spin-d3rlpy", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_help_names_every_command() -> None:
    text = run("--help")
    names = (
        "demo",
        "pretrain",
        "train",
        "evaluate",
        "report",
        "predict",
        "record",
        "export",
        "push",
        "info",
    )
    groups = ("data", "plot")
    for command in (*names, *groups):
        assert f"\n  {command} " in text


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_in_a_help_text_can_be_parsed(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = spin_arguments(line)
    assert arguments is not None
    parse(arguments, monkeypatch)


@pytest.mark.parametrize("line", ["train x --nope", "data biuld x", "plot", "train --steps x"])
def test_the_check_above_can_fail(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((typer.BadParameter.__mro__[1], AssertionError)):
        parse(line.split(), monkeypatch)


def test_examples_keep_their_lines_in_the_help_text() -> None:
    assert "\n    spin-d3rlpy train --config a.yaml --device cuda:0" in run("train", "--help")


def test_data_list_names_what_can_be_built() -> None:
    names = run("data", "list").split()
    for level in ("medium", "expert", "medium-expert", "random-medium-expert"):
        assert f"spin/cheetah-run-b3/{level}-v0" in names
    assert json.loads(run("data", "list", "--json")) == names


def test_info_shows_versions() -> None:
    text = run("info")
    assert f"spin-d3rlpy: {__version__}" in text
    assert "d3rlpy: 2.8" in text
    assert json.loads(run("info", "--json"))["versions"]["d3rlpy"].startswith("2.8")


def test_bad_input_is_one_line_on_stderr_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "data", "build", "spin/cheetah-run-b3/export-v0") == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: No dataset 'spin/cheetah-run-b3/export-v0'")
    assert "spin/cheetah-run-b3/expert-v0" in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "dataset must be given"),
        (["train", "spin/x", "--algorithm", "SPINQIL"], "Near matches: SPINIQL"),
        (["train", "spin/x", "--set", "bach_size=3"], "Near matches: batch_size"),
        (["train", "spin/x", "--set", "transformer.width=big"], "width to be a whole number"),
        (["train", "spin/x", "--mode", "gredy"], "'greedy' or 'sample', got 'gredy'"),
        (["train", "spin/x", "--device", "cuda:7"], "torch sees"),
        (["train", "spin/x", "--asm", "a", "--set", "transformer.width=8"], "by the ASM"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["pretrain", "spin/x", "--objective", "maskd"], "'variational'"),
        (["export", "unknown"], "Shipped: "),
        (["evaluate", "nothing"], "Expected the folder of a finished `spin-d3rlpy train`"),
        (["train", "spin/x", "--minutes", "-1"], "Invalid value for '--minutes'"),
        (["demo", "--minutes", "0"], "Invalid value for '--minutes'"),
        (["evaluate", "cheetah-run-b3-expert", "--mode", "best"], "'greedy', 'sample'"),
        (["evaluate", "cheetah-run-b3-expert", "--env", "spin/maze-v0"], "nvec"),
        (["plot", "curves", "nowhere"], "no curve.csv"),
        (["plot", "actions", "spin/nothing-v0"], "no dataset"),
    ],
)
def test_user_errors_end_with_exit_code_2_and_say_what_to_do(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [["-v", "train", "x", "--recipe", "huge"], ["train", "x", "--recipe", "huge", "-v"]],
)
def test_verbose_shows_the_traceback_wherever_it_stands(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["spin-d3rlpy", *arguments])
    with pytest.raises(ValueError, match="published, tuned"):
        main()


def test_warnings_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: object) -> None:
        warnings.simplefilter("always")
        warnings.warn("beware", stacklevel=1)

    monkeypatch.setattr(info, "emit", warn)
    assert call(monkeypatch, "info") == 0
    assert capsys.readouterr().err == "Warning: beware\n"


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "emit", interrupt)
    assert call(monkeypatch, "info") == 130


def test_arguments_are_json_or_text() -> None:
    parsed = parse_arguments(["bins=3", "bins2=[2,3]", "env_id=Pendulum-v1", "a=b=c"])
    assert parsed == {"bins": 3, "bins2": [2, 3], "env_id": "Pendulum-v1", "a": "b=c"}
    for text in ("bins", "=3"):
        with pytest.raises(ValueError, match="name=value, got"):
            parse_arguments([text])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train spin/cheetah-run-b3/exp", "spin/cheetah-run-b3/expert-v0"),
        ("train x --algorithm SPINDistillI", "SPINDistillIQL"),
        ("record maze-a5-m", "maze-a5-medium"),
    ],
)
def test_the_shell_completes_names(words: str, expected: str) -> None:
    line = f"spin-d3rlpy {words}"
    variables = {
        "_SPIN_D3RLPY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    result = CliRunner().invoke(app, [], prog_name="spin-d3rlpy", env=variables)
    assert expected in result.output.split()


def test_the_installed_command_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from spin_d3rlpy.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MultiDiscrete" in result.stdout
