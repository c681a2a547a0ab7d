"""Methods that take the fields of a dataclass, which type checkers, `help` and editors know."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def takes(
    arguments: Callable[P, object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Method decorator: the method's parameters are a dataclass's fields, written only there.

    @takes(FitOptions)
    def fit(self, *args, **options):
        options = FitOptions(*args, **options)
    """

    def decorate(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        own = inspect.signature(method)
        itself = next(iter(own.parameters.values()))
        fields = inspect.signature(arguments).parameters.values()
        signature = own.replace(parameters=[itself, *fields])
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    return decorate
