"""The one switch of everything that is there for speed only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from spin_d3rlpy._compat import is_exporting

_plain = ContextVar("plain", default=os.environ.get("SPIN_D3RLPY_PLAIN") == "1")


def is_on() -> bool:
    """Whether to take the fast path: not within `plain`, nor where a call is recorded to a file."""
    return not (is_exporting() or _plain.get())


def counts_launches(x: torch.Tensor) -> bool:
    """Whether a fast path is for a tensor's device because it takes fewer kernels."""
    return x.is_cuda and is_on()


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Computes everything as it is written in the papers; the same but for rounding.

    `SPIN_D3RLPY_PLAIN=1` does so for a whole process.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
