"""Imports triton before libraries that break it. Imports nothing heavy itself."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def import_triton_before_graphics() -> None:
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
