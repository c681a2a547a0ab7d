"""What MuJoCo's drawing needs: care with imports, and words where there is no way to draw."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

from spin_envs.errors import MissingDependencyError


@contextlib.contextmanager
def explained_graphics_errors() -> Iterator[None]:
    """Turns MuJoCo's error about a missing graphics library into one that says what to do."""
    try:
        yield
    except Exception as error:
        # Not imported here: environments without MuJoCo draw, too.
        mujoco = sys.modules.get("mujoco")
        if mujoco is None or not isinstance(error, mujoco.FatalError):
            raise
        raise MissingDependencyError(
            f"Drawing needs a graphics back-end, and none could be used ({error}). On a machine "
            "without a display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts."
        ) from error


def import_triton_beside_graphics() -> None:
    """Imports triton where it is installed, so that it works in one process with dm_control.

    To be called before an import of dm_control. That loads EGL where MUJOCO_GL=egl, and Mesa's
    EGL, on a machine without a GPU, loads its LLVM. If triton 3.9, which comes with torch 2.15, is
    imported then, it takes Mesa's LLVM for its own and ends the process by a segmentation fault;
    torch imports triton when an optimizer is made. What is imported before Mesa is not affected,
    and after it triton's library is told to look for functions in itself first.
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
