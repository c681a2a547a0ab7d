"""The first import of d3rlpy, without what it prints. Imports nothing heavy itself."""

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
    """Finder that is there until d3rlpy is imported, whoever does it, and makes that quiet.

    d3rlpy 2.8 imports gym 0.26 in addition to gymnasium, which prints that it is unmaintained.
    Where Shimmy is installed it imports that, too, and with it dm_control, and logs a line to
    standard output, which belongs to the program; without a display, glfw warns.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns d3rlpy's own spec, with a loader that is quiet; nothing for other modules."""
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

    Not while a module of this package is being imported, whose names are not all there yet.
    """
    light = {"spin_d3rlpy", "spin_d3rlpy._version", "spin_d3rlpy._quiet_import"}
    if not any(name.startswith("spin_d3rlpy") for name in sys.modules.keys() - light):
        importlib.import_module("spin_d3rlpy.algos")


def _import_triton_before_graphics() -> None:
    """Imports triton where it is installed, so that it works in one process with dm_control.

    dm_control loads EGL where MUJOCO_GL=egl, and Mesa's EGL, on a machine without a GPU, loads its
    LLVM. If triton 3.9, which comes with torch 2.15, is imported then, it takes Mesa's LLVM for its
    own and ends the process by a segmentation fault; torch imports triton when an optimizer is
    made. What is imported before Mesa is not affected, and after it triton's library is told to
    look for functions in itself first.
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
