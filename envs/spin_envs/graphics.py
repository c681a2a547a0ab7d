"""What MuJoCo's drawing needs: an order of imports, and words where there is no way to draw."""

from __future__ import annotations

import contextlib
import importlib
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


def import_triton_before_graphics() -> None:
    """Imports triton where it is installed; to be called before the first import of dm_control.

    That import loads EGL where MUJOCO_GL=egl, and Mesa's EGL, on a machine without a GPU, loads
    its LLVM. If triton 3.9, which comes with torch 2.15, is imported after it, the process ends by
    a segmentation fault, and torch imports triton when an optimizer is made. In this order both
    work.
    """
    if "dm_control" not in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
