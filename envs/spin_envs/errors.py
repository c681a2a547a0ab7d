"""Errors for bad input; each message says what was expected, what came and what to do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class InvalidActionError(ValueError):
    """An action outside the environment's `MultiDiscrete` space."""


class ObservationShapeError(ValueError):
    """An observation, or a space of observations, of another shape than it should have."""


class UnknownTaskError(ValueError):
    """A domain or task that the suite does not have."""


class EnvironmentCopyError(RuntimeError):
    """An environment that episodes in lock-step need copies of, and that cannot be copied."""


class MissingDependencyError(ImportError):
    """A required package is not installed or cannot be imported."""


# Why drawing failed in this process: MuJoCo ends the process when it is asked a second time.
_failed: list[str] = []


@contextlib.contextmanager
def explained_graphics_errors(what: str = "Drawing") -> Iterator[None]:
    """Turns errors about missing graphics, now or earlier, into `MissingDependencyError`."""
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
        if core := sys.modules.get("dm_control.mujoco.wrapper.core"):
            # Else Python prints a second error, of the half-made context's destructor.
            core.MjrContext._ptr = staticmethod(lambda: None)
        raise graphics_error(str(error), what) from error


def graphics_error(reason: str, what: str = "Drawing") -> MissingDependencyError:
    """Returns the error for an unusable graphics library."""
    return MissingDependencyError(
        f"{what} needs a graphics back-end, and none could be used ({reason}). On a machine "
        "without a display, install libegl1 or libosmesa6, and set MUJOCO_GL=egl or "
        "MUJOCO_GL=osmesa before Python starts. If nothing is rendered, unset MUJOCO_GL."
    )
