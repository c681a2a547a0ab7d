"""Errors that say what to do where MuJoCo cannot draw."""

from __future__ import annotations

import contextlib
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
