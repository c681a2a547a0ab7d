"""What MuJoCo's drawing needs: care with imports, and words where there is no way to draw."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

from spin_envs.errors import MissingDependencyError

# Why drawing failed in this process: MuJoCo ends the process when it is asked a second time.
_failed: list[str] = []


@contextlib.contextmanager
def explained_graphics_errors(what: str = "Drawing") -> Iterator[None]:
    """Turns errors about a missing graphics library into one that says what to do.

    Args:
        what: needs the graphics library.

    Raises:
        MissingDependencyError: there is none, or there was none before.
    """
    if _failed:
        raise graphics_error(_failed[0], what)
    try:
        yield
    except Exception as error:
        # Not imported here: environments without MuJoCo draw, too.
        mujoco = sys.modules.get("mujoco")
        if mujoco is None or not isinstance(error, mujoco.FatalError):
            raise
        _failed.append(str(error))
        raise graphics_error(str(error), what) from error


def graphics_error(reason: str, what: str = "Drawing") -> MissingDependencyError:
    """Returns the error for a graphics library that cannot be used."""
    return MissingDependencyError(
        f"{what} needs a graphics back-end, and none could be used ({reason}). On a machine "
        "without a display, install libegl1 or libosmesa6, and set MUJOCO_GL=egl or "
        "MUJOCO_GL=osmesa before Python starts. Where nothing is drawn, unset MUJOCO_GL."
    )


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
