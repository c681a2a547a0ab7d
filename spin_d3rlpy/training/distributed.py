"""Several processes that train one model: `enable_ddp=True` under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")


def require_process_group() -> None:
    """Raises RuntimeError unless this process belongs to an initialized group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "enable_ddp=True needs a process group: call "
            "d3rlpy.distributed.init_process_group('gloo' or 'nccl') first and start the script "
            "with torchrun."
        )


def share_training(module: nn.Module) -> None:
    """Copies rank 0's weights to all processes; each parameter averages its gradient from now on.

    Call it in every process with the same module, after seeding each differently, e.g.
    `d3rlpy.seed(seed + rank)`, so that mini-batches differ. d3rlpy's `DistributedDataParallel` sees
    only calls of `forward`; policies and critics here have further methods.
    """
    require_process_group()
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_average_gradient)


class Processes:
    """The processes that train one model and share its checkpoints: here, this one alone."""

    rank, count = 0, 1  # process 0 reads and writes files

    def from_first(self, compute: Callable[[], T]) -> T:
        """Computes in process 0; all processes get the result or the exception."""
        return compute()

    def gather(self, value: T) -> list[T]:
        """Returns every process's value, by rank."""
        return [value]


class ProcessGroup(Processes):
    """The processes of the initialized group; all call each method, in the same order."""

    def __init__(self) -> None:
        require_process_group()
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        # Objects of the host travel by themselves: NCCL would take them to a GPU first.
        self._group = dist.new_group(backend="gloo")

    def from_first(self, compute: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = compute()
            except Exception as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        result, raised = outcome
        if raised is not None:
            raise raised
        return result  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self._group)
        return values


def _average_gradient(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
