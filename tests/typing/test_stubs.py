"""What type checkers know of the named algorithms; mypy checks `user_script` with all tests."""

from __future__ import annotations

import ast
import typing
from typing import Any

import pytest

from spin_d3rlpy.algos import named
from tests.typing import stubs, user_script


def _parsed(text: str) -> tuple[set[str], list[str]]:
    """Imports in any order, as ruff sorts them, and the rest of a module."""
    imports, rest = set(), []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ImportFrom):
            imports |= {f"{statement.module}.{alias.name}" for alias in statement.names}
        else:
            rest.append(ast.dump(statement))
    return imports, rest


def test_the_stub_is_what_the_classes_say() -> None:
    written, wanted = (_parsed(text) for text in (stubs.STUB.read_text(), stubs.stub()))
    assert written == wanted, "Run python -m tests.typing.stubs, then ruff."


def test_the_users_script_runs() -> None:
    user_script.main()


@pytest.mark.parametrize("call", user_script.MISTAKES)
def test_mistakes_that_type_checkers_find_are_errors(call: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()


def test_every_named_algorithm_is_in_the_stub() -> None:
    algorithms = {
        name
        for name, value in vars(named).items()
        if isinstance(value, type) and value.__module__ == named.__name__
    }
    assert len(algorithms) == 2 * 26
    text = stubs.STUB.read_text()
    assert all(f"class {name}(" in text for name in algorithms)


def test_annotations_become_source() -> None:
    source = stubs.Source()
    hint = typing.Optional[typing.Literal["a", "b"]]  # noqa: UP045
    assert source.annotation(hint) == "Literal['a', 'b'] | None"
    assert source.annotation(list[int]) == "list[int]"
    assert source.annotation(stubs.Source) == "Source"
    assert source.imports["tests.typing.stubs"] == {"Source"}
