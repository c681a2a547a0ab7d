"""Workarounds for the host libraries: one function each, with its reason and the host's version."""

from __future__ import annotations

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


def fuse_adam(optim: OptimizerWrapper) -> OptimizerWrapper:
    """Switches a new Adam or AdamW to torch's fused kernel.

    d3rlpy 2.8's optimizer factories have no `fused` argument. On two CPU cores the fused kernel
    takes about a tenth of the loop's time. Other optimizers are returned as they are.
    """
    if isinstance(optim.optim, torch.optim.Adam | torch.optim.AdamW) and not optim.optim.state:
        for group in optim.optim.param_groups:
            group["fused"], group["foreach"] = True, False
    return optim


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products.

    torch 2.13 tells this only through private functions; without them the answer is no.
    """
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)
