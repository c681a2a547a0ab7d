"""The house itself: sizes that it must not outgrow, and imports without circles."""

from __future__ import annotations

import tomllib

import grimp
import pytest

from tests.subprocesses import ROOT

SOURCES = [*ROOT.glob("spin_d3rlpy/**/*.py"), *ROOT.glob("envs/spin_envs/**/*.py")]


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan, 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for imported in imports.get(module, set()):
            if imported not in number:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], number[imported])
        if lowest[module] == number[module]:
            group = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(group)

    for module in imports:
        if module not in number:
            visit(module)
    return found


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph("spin_d3rlpy", "spin_envs")
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    assert len(imports) > 100
    assert circles(imports) == []


def test_the_check_above_can_fail() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}
    assert circles(imports) == [{"a", "b", "c"}]


def test_import_contracts_have_no_exceptions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert settings["contracts"]
    assert not any("ignore_imports" in contract for contract in settings["contracts"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_fits_into_a_head(path: object) -> None:
    assert len(path.read_text().splitlines()) <= 400  # type: ignore[attr-defined]
