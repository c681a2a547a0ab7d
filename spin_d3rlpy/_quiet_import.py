"""Imports d3rlpy without the messages that it prints. Imports nothing heavy itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import os
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
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "d3rlpy":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_quietly, loader.exec_module)
        return spec


def _quietly(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    with contextlib.suppress(ImportError):  # a d3rlpy without gym has nothing to silence
        from gym_notices import notices

        notices.notices.clear()
    _import_triton_before_graphics()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec_module(module)
    register_algorithms()


def register_algorithms() -> None:
    """Imports the algorithms, so that `d3rlpy.load_learnable` knows their files.

    Skipped while a module of this package is still being imported.
    """
    light = {"spin_d3rlpy", "spin_d3rlpy._version", "spin_d3rlpy._quiet_import"}
    if not any(name.startswith("spin_d3rlpy") for name in sys.modules.keys() - light):
        importlib.import_module("spin_d3rlpy.algos")


def _import_triton_before_graphics() -> None:
    """Imports triton, if installed, before dm_control loads a graphics library.

    With MUJOCO_GL=egl and no GPU, Mesa loads its own LLVM. triton 3.9 (torch 2.15) imported after
    that uses Mesa's LLVM and crashes the process.
    """
    deep = getattr(os, "RTLD_DEEPBIND", 0) if "dm_control" in sys.modules else 0
    flags = sys.getdlopenflags() if deep else 0
    try:
        if deep:
            sys.setdlopenflags(flags | deep)
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
    finally:
        if deep:
            sys.setdlopenflags(flags)


def install() -> None:
    """Makes the first import of d3rlpy quiet; called by `import spin_d3rlpy`."""
    if "d3rlpy" in sys.modules:
        register_algorithms()
    else:
        sys.meta_path.insert(0, QuietD3rlpy())
