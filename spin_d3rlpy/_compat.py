"""Workarounds for the host libraries: one function each, with its reason and the host's version."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # importing d3rlpy imports gym, before `silence_gym_notice` could be called
    from d3rlpy.optimizers.optimizers import OptimizerWrapper


def silence_gym_notice() -> None:
    """Keeps gym from printing that it is unmaintained when d3rlpy imports it.

    d3rlpy 2.8 imports gym 0.26 beside gymnasium; gym looks its notice up in a table of the
    package `gym_notices`. To be called before the first import of d3rlpy.
    """
    try:
        from gym_notices import notices
    except ImportError:  # a d3rlpy without gym has nothing to silence
        return
    notices.notices.clear()


def import_d3rlpy_quietly() -> None:
    """Imports d3rlpy without what that prints where Shimmy is installed.

    d3rlpy 2.8 then imports Shimmy, and with it dm_control, and logs a line to standard output,
    which belongs to the program; without a display, glfw warns. To be called before the first
    import of d3rlpy.
    """
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import d3rlpy  # noqa: F401


def fuse_adam(optim: OptimizerWrapper) -> OptimizerWrapper:
    """Switches a new Adam or AdamW to torch's fused kernel.

    d3rlpy 2.8's optimizer factories have no `fused` argument. On two CPU cores the fused kernel
    takes about a tenth of the loop's time. Other optimizers are returned as they are.
    """
    if isinstance(optim.optim, torch.optim.Adam | torch.optim.AdamW) and not optim.optim.state:
        for group in optim.optim.param_groups:
            group["fused"], group["foreach"] = True, False
    return optim
