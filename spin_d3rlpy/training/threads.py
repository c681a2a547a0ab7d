"""Number of torch threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Context in which torch computes in no more threads than these.

    Operations of small networks on a few rows take microseconds. If other programs use the cores,
    threads wait for each other each time: one busy core of two makes decisions five times as slow.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Context in which torch computes in the calling thread alone."""
    return at_most(1)
