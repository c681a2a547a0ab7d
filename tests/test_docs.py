"""What the documentation shows works: its code runs, its commands parse, its pictures are there.

A page's Python blocks run in order, in one namespace and in an empty folder. Comments say how a
test makes them short: `<!-- test: n_steps=5_000 => n_steps=2 -->` replaces text in the page's
blocks, and fails if it is not there. `<!-- test needs: wandb -->` skips a page where that
is absent, `<!-- test slow -->` makes it one of the slow tests.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import tomllib
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from examples.paper.__main__ import app as paper
from tests.cli.commands import PROGRAM, parse, require_command, spin_arguments
from tests.subprocesses import ROOT

DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```", re.M | re.S)
_CHANGE = re.compile(r"^<!-- test: (.+?) => (.+?) -->$", re.M)
_NEEDS = re.compile(r"^<!-- test needs: (.+?) -->$", re.M)
_INLINE = re.compile(rf"`({PROGRAM} [^`\n]+)`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> list[str]:
    return [m["code"] for m in _BLOCK.finditer(text) if m["language"] in languages]


def python_of(page: Path) -> str:
    """Returns a page's Python blocks, made short."""
    text = page.read_text()
    # What is a file of `tests/outside`, too, runs there: a process can register it only once.
    files = {path.read_text() for path in (ROOT / "tests" / "outside").glob("*.py")}
    shown = code = "\n".join(block for block in blocks(text, "python") if block not in files)
    for old, new in dict(_CHANGE.findall(text)).items():
        assert old in shown, f"{name_of(page)} has no {old!r}"
        code = code.replace(old, new)
    return code


def with_speed(page: Path) -> Any:
    """Returns a page as a parameter, marked slow if it says so."""
    is_slow = "<!-- test slow -->" in page.read_text()
    return pytest.param(page, marks=[pytest.mark.slow] if is_slow else [], id=name_of(page))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, so that pages share a dataset."""
    return tmp_path_factory.mktemp("datasets")


@pytest.mark.usefixtures("short_episodes", "brief_tests_of_critics")
@pytest.mark.parametrize("page", [with_speed(p) for p in PAGES if python_of(p)])
def test_the_code_of_a_page_runs(
    page: Path, datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in _NEEDS.findall(page.read_text()):
        pytest.importorskip(needed)
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, of its packages
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(datasets))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    monkeypatch.chdir(tmp_path)
    for folder in ("examples", "examples/sepsis"):  # a page may import a module of one
        monkeypatch.syspath_prepend(ROOT / folder)
    # A module of its own, because classes that are defined in it may be looked up by name.
    module = types.ModuleType("page")
    monkeypatch.setitem(__import__("sys").modules, "page", module)
    exec(compile(python_of(page), name_of(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_can_be_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    # Commands also stand in indented blocks.
    lines += [line.strip() for line in text.splitlines() if line.startswith(f"    {PROGRAM} ")]
    for part in (part for line in lines for part in line.split("&&")):
        arguments = spin_arguments(part)
        if arguments is not None and not set(arguments) & {"--help", "--install-completion"}:
            parse(arguments, monkeypatch)
        if (arguments := spin_arguments(part, "python -m examples.paper")) is not None:
            parse(arguments, monkeypatch, paper)
    for words in (shown.split()[1:] for shown in _INLINE.findall(text)):
        if words[0] != "<command>":
            require_command(words)
    check_extras(text)


def check_extras(text: str) -> None:
    """Looks up the extras that are to be installed."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:spin-d3rlpy|\"\.)\[([\w,]+)\]", text):
        assert set(extras.split(",")) <= known.keys(), extras


def test_the_checks_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_extras('pip install "spin-d3rlpy[onnxx]"')
    arguments = spin_arguments("MINARI_REMOTE=hf://me spin-d3rlpy data posh x | cat")
    assert arguments == ["data", "posh", "x"]
    with pytest.raises(Exception, match="posh"):
        parse(arguments, monkeypatch)


def test_equations_are_mathml_or_refused() -> None:
    to_mathml = runpy.run_path(str(ROOT / "docs" / "extensions" / "mathml.py"))["to_mathml"]
    page = '<p>a</p><div class="arithmatex">\\[x_i %s\\]</div>'
    assert "<msub>" in to_mathml(page % "")
    for unknown in (r"\arg", "&amp; y"):
        with pytest.raises(ValueError, match="latex2mathml knows"):
            to_mathml(page % unknown)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text())
    for target in _LINK.findall(text):
        assert (page.parent / target.split(" ")[0]).exists(), target


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    missing = [p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).as_posix() not in navigation]
    assert not missing


def test_every_public_name_is_in_the_reference() -> None:
    import spin_d3rlpy

    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"\b[A-Za-z_]\w+\b", text))
    configs = {n for n in spin_d3rlpy.__all__ if n.removesuffix("Config") in named}
    missing = set(spin_d3rlpy.__all__) - named - configs - {"__version__", "spin_envs"}
    assert not missing


def test_the_dependency_diagram_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("dependencies", DOCS / "figures/dependencies.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn, _way_of_a_step = blocks((DOCS / "explanation/architecture.md").read_text(), "mermaid")
    assert drawn == module.diagram(), "python docs/figures/dependencies.py --write"


def test_pages_name_files_that_exist() -> None:
    for page in PAGES:
        for path in re.findall(
            r"`((?:examples|docs|envs|spin_d3rlpy)/[\w./-]+)`", page.read_text()
        ):
            assert (ROOT / path).exists() or "<" in path, f"{name_of(page)}: {path}"
