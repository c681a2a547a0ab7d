"""Logs in a notebook: metrics go to the log's files, not into the cell."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import structlog
from d3rlpy.logging import D3RLPyLogger


def is_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    return hasattr(shell.get_ipython(), "kernel")  # a terminal's IPython has none


@contextlib.contextmanager
def only_warnings() -> Iterator[None]:
    """Context in which d3rlpy's log writes warnings and errors only."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


class NotebookLogger(D3RLPyLogger):
    """Writes what d3rlpy's logger writes, except for lines on the screen.

    There are two colored ones per epoch, one of which is a dictionary of hundreds of characters.
    The progress bar stays, and `fit` returns the metrics.
    """

    def add_params(self, params: dict[str, Any]) -> None:
        """Writes the configuration to the log's files."""
        with only_warnings():
            super().add_params(params)

    def commit(self, epoch: int, step: int) -> dict[str, float]:
        """Writes an epoch's metrics to the log's files."""
        with only_warnings():
            return super().commit(epoch, step)

    def save_model(self, epoch: int, algo: Any) -> None:
        """Saves the algorithm in the log's folder."""
        with only_warnings():
            super().save_model(epoch, algo)
