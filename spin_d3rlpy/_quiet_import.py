"""Imports d3rlpy without the messages that it prints. Imports nothing heavy itself."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class QuietD3rlpy(MetaPathFinder):
    """Import finder that silences the first import of d3rlpy, then removes itself.

    d3rlpy 2.8 imports gym 0.26, which prints a notice, and Shimmy with dm_control if installed,
    which logs to standard output and, without a display, warns.

    Args:
        before: called before d3rlpy's code runs.
        after: called after it.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = before, after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "d3rlpy":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._execute, loader.exec_module)
        return spec

    def _execute(self, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._before()
        with contextlib.suppress(ImportError):  # a d3rlpy without gym has nothing to silence
            from gym_notices import notices

            notices.notices.clear()
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec_module(module)
        self._after()


def install(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Makes the first import of d3rlpy quiet; if it is imported already, only calls `after`."""
    if "d3rlpy" in sys.modules:
        after()
    else:
        sys.meta_path.insert(0, QuietD3rlpy(before, after))
