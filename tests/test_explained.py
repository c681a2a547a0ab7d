"""Every public field of a config is explained where a reader looks: in its class or a base."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import spin_d3rlpy
from spin_d3rlpy import PolicyFactory
from tests.subprocesses import ROOT

CONFIGS = ("Config", "Options", "Settings", "Weights")
# Its arguments are explained where `fit`'s are.
PASSED_ON = {"StageOptions"}


def issubclass_of_policy(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, PolicyFactory)


def config_classes() -> list[type[Any]]:
    """Public dataclasses of the package that users set fields of."""
    classes = []
    for module in pkgutil.walk_packages(spin_d3rlpy.__path__, "spin_d3rlpy."):
        for name, value in vars(importlib.import_module(module.name)).items():
            is_own = getattr(value, "__module__", None) == module.name
            is_config = inspect.isclass(value) and dataclasses.is_dataclass(value)
            is_public = not name.startswith("_") and name not in PASSED_ON
            is_set_by_users = name.endswith(CONFIGS) or issubclass_of_policy(value)
            if is_own and is_config and is_public and is_set_by_users:
                classes.append(value)
    return classes


def explained(config_class: type[Any]) -> set[str]:
    """Names in the `Args:` of a class and its bases."""
    names: set[str] = set()
    for parent in config_class.__mro__:
        text = inspect.cleandoc(vars(parent).get("__doc__") or "")
        for section in re.findall(r"^Args:\n((?:    .*\n?|\n)*)", text, re.MULTILINE):
            names |= set(re.findall(r"^    (\w+): \S", section, re.MULTILINE))
    return names


def unexplained(config_class: type[Any]) -> list[str]:
    known = explained(config_class)
    return [field.name for field in dataclasses.fields(config_class) if field.name not in known]


@pytest.mark.parametrize("config_class", config_classes(), ids=lambda value: value.__name__)
def test_every_field_of_a_config_is_explained(config_class: type[Any]) -> None:
    assert unexplained(config_class) == []


def test_all_configs_are_looked_at() -> None:
    names = {config_class.__name__ for config_class in config_classes()}
    assert {"IQLConfig", "SPIN", "TransformerConfig", "TrainSettings"} <= names


def test_an_unexplained_field_is_found() -> None:
    @dataclasses.dataclass
    class Config:
        """Sizes; see width: elsewhere.

        Args:
            depth: layers.
        """

        depth: int = 1
        width: int = 1

    assert unexplained(Config) == ["width"]


def raises_itself(function: ast.FunctionDef) -> bool:
    """Whether a function's own statements raise an error of a class, other than of a hook."""
    statements: list[ast.AST] = list(function.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func)
            if name.endswith("Error") and name not in ("NotImplementedError", "AttributeError"):
                return True
        statements.extend(ast.iter_child_nodes(node))
    return False


def silent(tree: ast.Module) -> list[str]:
    """Public functions, methods and constructors that raise errors and do not say which."""
    names = []
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owners: list[ast.Module | ast.ClassDef] = [tree, *classes]
    for owner in owners:
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef) or not raises_itself(node):
                continue
            is_constructor = node.name == "__init__"
            if node.name.startswith("_") and not is_constructor:
                continue
            text = ast.get_docstring(owner if is_constructor else node) or ""
            private = isinstance(owner, ast.ClassDef) and owner.name.startswith("_")
            if "Error" not in text and not private:
                names.append(node.name)
    return names


def test_what_a_function_raises_is_in_its_docstring() -> None:
    # The docstrings of commands are their help; the program prints the errors of all as one line.
    paths = [p for p in ROOT.glob("spin_d3rlpy/**/*.py") if p.parent.name != "cli"]
    by_file = {str(p.relative_to(ROOT)): silent(ast.parse(p.read_text())) for p in paths}
    assert {path: names for path, names in by_file.items() if names} == {}


def test_a_silent_function_is_found() -> None:
    assert silent(ast.parse("def f():\n    raise ValueError('x')")) == ["f"]
