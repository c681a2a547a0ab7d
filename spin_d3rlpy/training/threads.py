"""Number of torch threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which torch computes in the calling thread alone.

    Operations of small networks on a few rows take microseconds. If other programs use the cores,
    threads wait for each other each time: one busy core of two makes decisions five times as slow.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
