"""The house itself: imports without circles, and public verbs that say what they take."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import grimp
import pytest

from tests.subprocesses import ROOT


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


SOURCES = sorted(ROOT.glob("spin_d3rlpy/**/*.py"))


def imports_by_string(path: Path) -> list[str]:
    """Where a module imports this package by a string, which the contracts of imports cannot see.

    Names of other packages may be imported so; names that are not written there may not.
    """
    places = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            name = node.args[0]
            is_fixed = isinstance(name, ast.Constant)
            if not is_fixed or ast.unparse(name).strip("'").startswith("spin_d3rlpy"):
                places.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_sentence = " " in node.value
            if node.value.startswith("spin_d3rlpy.") and not is_sentence:
                places.append(f"{node.lineno}: {node.value}")
    return places


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_another_by_string(path: Path) -> None:
    if path == ROOT / "spin_d3rlpy/__init__.py":
        return  # the top: its names are imported on first use
    assert imports_by_string(path) == []


def test_an_import_by_string_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    for line in (
        "importlib.import_module('spin_d3rlpy.algos')",
        "importlib.import_module(name)",
        "TABLE = {'IQL': 'spin_d3rlpy.algos.iql'}",
    ):
        path.write_text(line)
        assert imports_by_string(path)


def private_uses_of_algorithms(path: Path) -> list[str]:
    """Where a module reaches into an algorithm: `algo._name`, `self._algo._name`."""
    uses = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name.lstrip("_") == "algo":
            uses.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}")
    return uses


def test_algorithms_are_used_by_public_methods() -> None:
    paths = sorted(ROOT.glob("spin_d3rlpy/**/*.py"))
    assert [use for path in paths for use in private_uses_of_algorithms(path)] == []


def test_the_hooks_that_contributing_lists_are_those_of_fit() -> None:
    tree = ast.parse((ROOT / "spin_d3rlpy/algos/fit.py").read_text())
    (asked,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Trainable")
    methods = {
        node.name
        for node in asked.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    }
    assert {"train_first_stages", "sample_and_update"} <= methods
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in methods if f"| `{name}` |" not in text] == ["set_grad_step"]


def test_the_model_is_pretrained_in_one_place() -> None:
    callers = set()
    for path in ROOT.glob("spin_d3rlpy/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pretrain":
                callers.add(str(path.relative_to(ROOT)))
    assert callers == {"spin_d3rlpy/policies/stages.py"}


NOT_ENVIRONMENTS = {"optim", "optimizer", "schedule", "lr_scheduler", "physics"}
STEP_ENVIRONMENTS = {
    "envs/spin_envs/rollout.py",  # plays all episodes of experiments and evaluations
    "envs/spin_envs/discretized.py",  # this and the next three wrap an environment
    "envs/spin_envs/flatten_action.py",
    "envs/spin_envs/joint_action.py",
    "envs/spin_envs/copies.py",  # a few steps, to compare an environment with its copy
    "spin_d3rlpy/_compat.py",
    "spin_d3rlpy/data/minari/playing.py",  # replays recorded actions
    "spin_d3rlpy/data/online.py",  # a user's environment and function, of one state at a time
    "spin_d3rlpy/runs/play.py",  # a video, with a picture between steps
}


def steps_environments(tree: ast.AST) -> bool:
    """Whether a module makes an environment's steps itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).split(".")[-1].lstrip("_")
            if node.func.attr == "step" and owner not in NOT_ENVIRONMENTS:
                return True
    return False


def test_episodes_are_played_in_one_place() -> None:
    files = {
        str(path.relative_to(ROOT))
        for folder in ("spin_d3rlpy", "envs/spin_envs")
        for path in (ROOT / folder).glob("**/*.py")
        if steps_environments(ast.parse(path.read_text()))
    }
    assert files == STEP_ENVIRONMENTS


def test_the_way_of_a_training_step_exists() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page.split("## The way of a training step")[1].split("\n## ")[0]
    stops = re.findall(r'\["([\w/]+\.py): (\w+)"\]', section)
    assert len(stops) > 10
    for file, name in stops:
        tree = ast.parse((ROOT / "spin_d3rlpy" / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file} has no {name}"
