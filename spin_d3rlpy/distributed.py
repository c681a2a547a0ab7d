"""Several processes that train one model: `enable_ddp=True` under torchrun.

d3rlpy wraps networks in `DistributedDataParallel`, which sees only calls of `forward` and changes
the names under which weights are saved. Policies and critics here have further methods, so each
parameter averages its own gradient instead; networks and files stay as they are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def require_process_group() -> None:
    """Raises RuntimeError unless this process belongs to an initialized group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "enable_ddp=True needs a process group: call "
            "d3rlpy.distributed.init_process_group('gloo' or 'nccl') first and start the script "
            "with torchrun."
        )


def share_training(module: nn.Module) -> None:
    """Gives all processes rank 0's weights, and from now on the mean of their gradients.

    To be called by every process with the same module. Each process draws its own mini-batches:
    seed them differently, e.g. `d3rlpy.seed(seed + rank)`.

    Raises:
        RuntimeError: there is no process group.
    """
    require_process_group()
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_average_gradient)


def _average_gradient(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
