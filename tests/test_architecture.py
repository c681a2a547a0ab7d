"""The house itself: imports without circles, and public verbs that say what they take."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
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


def public_verbs(path: Path) -> Iterator[ast.FunctionDef]:
    """A module's functions and its classes' methods without an underscore."""
    statements = list(ast.parse(path.read_text()).body)
    for parent in list(statements):
        if isinstance(parent, ast.ClassDef):
            statements += parent.body
    for node in statements:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


SOURCES = sorted(ROOT.glob("spin_d3rlpy/**/*.py"))
# Arguments of d3rlpy's online verbs, of torch's functions with gradients and of what is drawn are
# passed on as they are.
PASSED_ON = {"fit_online", "collect", "forward", "backward", "curves", "progress_bar", "configured"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_verbs_name_their_arguments(path: Path) -> None:
    hidden = set()
    for verb in public_verbs(path):
        for gathered in (verb.args.vararg, verb.args.kwarg):
            if gathered is None:
                continue
            # Values that are all of one type (`*rules: Rule`) say what they are.
            if gathered.annotation is None or ast.unparse(gathered.annotation) == "Any":
                hidden.add(verb.name)
    assert hidden <= PASSED_ON


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


LONG = 60  # lines of a function that a reader needs a summary of


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_long_functions_have_docstrings(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    assert [
        function.name
        for function in functions
        if (function.end_lineno or 0) - function.lineno >= LONG and not ast.get_docstring(function)
    ] == []


# Parameters annotated `Any`, which no checker checks. Lower it, never raise it.
ANY_PARAMETERS = 138


def test_parameters_of_any_type_only_become_fewer() -> None:
    parameters = [
        argument
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Any"
    ]
    assert len(parameters) <= ANY_PARAMETERS


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
    tree = ast.parse((ROOT / "spin_d3rlpy/algos/hooks.py").read_text())
    (hooks,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = {
        node.name
        for node in hooks.body
        if isinstance(node, ast.FunctionDef)
        and "property" not in [ast.unparse(decorator) for decorator in node.decorator_list]
    }
    assert {"hold_out", "sample_and_update"} <= methods
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"| `{name}` |" in text for name in methods)


def test_the_model_is_pretrained_in_one_place() -> None:
    callers = set()
    for path in ROOT.glob("spin_d3rlpy/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pretrain":
                callers.add(str(path.relative_to(ROOT)))
    assert callers == {"spin_d3rlpy/policies/stages.py"}


def packed_statements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Statements that are shorter than they are clear."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and ast.unparse(node.iter).endswith("[:1]"):
            yield node.lineno, "a loop over [:1] is an if"
        elif isinstance(node, ast.Lambda) and (node.args.defaults or node.args.kw_defaults):
            yield node.lineno, "a lambda with default arguments is a function that returns one"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            if isinstance(node.func.value, ast.Dict):
                yield node.lineno, "a call of a dictionary's entry is an if"
        elif isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            yield node.lineno, "a literal that is unpacked is its entries"


@pytest.mark.parametrize(
    "line", ["*(1, 2),", "for i in x[:1]: pass", "lambda a=1: a", "{1: f}[k]()"]
)
def test_packed_statements_are_found(line: str) -> None:
    assert list(packed_statements(ast.parse(line)))


def test_no_statement_is_packed() -> None:
    packed = {
        str(path.relative_to(ROOT)): list(packed_statements(ast.parse(path.read_text())))
        for folder in ("spin_d3rlpy", "envs/spin_envs", "examples")
        for path in (ROOT / folder).glob("**/*.py")
    }
    assert {path: places for path, places in packed.items() if places} == {}


def empty_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Local variables and arguments whose names do not tell what they hold."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
    return [(line, name) for line, name in names if name in ("found", "shown", "said")]


@pytest.mark.parametrize(
    "line",
    [
        "found = 1",
        "a, *shown = x",
        "if said := x: pass",
        "def f(found): pass",
        "[f for found in x]",
    ],
)
def test_empty_names_are_found(line: str) -> None:
    assert empty_names(ast.parse(line))


def test_names_tell_what_variables_hold() -> None:
    empty = {
        str(path.relative_to(ROOT)): empty_names(ast.parse(path.read_text()))
        for folder in ("spin_d3rlpy", "envs/spin_envs")
        for path in (ROOT / folder).glob("**/*.py")
    }
    assert {path: places for path, places in empty.items() if places} == {}


# Whose `step` is not an environment's.
NOT_ENVIRONMENTS = {"optim", "optimizer", "schedule", "lr_scheduler", "physics"}
STEP_ENVIRONMENTS = {
    "envs/spin_envs/rollout.py",  # plays all episodes of experiments and evaluations
    "envs/spin_envs/discretized.py",  # this and the next two wrap an environment
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


@pytest.mark.parametrize(
    ("written", "home"),
    [
        (".exponential_(", "spin_d3rlpy/nvec.py"),  # Gumbel noise
        ("CosineAnnealingLR(", "spin_d3rlpy/training/schedules.py"),
        ("    n_blocks: int =", "spin_d3rlpy/asm/model.py"),
        ("(~layout.padding).flatten().nonzero()", "spin_d3rlpy/asm/model.py"),  # padded slots
        ('"to divide width=', "spin_d3rlpy/asm/model.py"),  # sizes of Transformers
    ],
)
def test_what_was_written_twice_has_one_home(written: str, home: str) -> None:
    files = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("spin_d3rlpy/**/*.py")
        if written in path.read_text()
    }
    assert files == {home}


def test_the_way_of_a_training_step_exists() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page.split("## The way of a training step")[1].split("\n## ")[0]
    stops = re.findall(r'\["([\w/]+\.py): (\w+)"\]', section)
    assert len(stops) > 10
    for file, name in stops:
        tree = ast.parse((ROOT / "spin_d3rlpy" / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file} has no {name}"
