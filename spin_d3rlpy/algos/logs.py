"""d3rlpy's loggers, in folders that no other run writes to at the same time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from typing import Any

from d3rlpy.base import save_config
from d3rlpy.logging import D3RLPyLogger, LoggerAdapterFactory

from spin_d3rlpy._compat import log_folders
from spin_d3rlpy.locks import exclusive_folder


@contextmanager
def open_logger(
    algo: Any,
    factory: LoggerAdapterFactory,
    name: str,
    n_steps_per_epoch: int,
    with_timestamp: bool,
) -> Iterator[D3RLPyLogger]:
    """Yields a logger that has the configuration logged already.

    Args:
        algo: whose configuration, metrics and models are logged.
        factory: d3rlpy's logger adapter factory.
        name: of the folder.
        n_steps_per_epoch: steps of an epoch.
        with_timestamp: append the time, and a number if there is such a folder. Otherwise what is
            in the folder stays, and d3rlpy appends to it.

    Raises:
        FolderInUseError: another run is logging to this folder.
    """
    if with_timestamp:
        name = _new_name(factory, f"{name}_{datetime.now():%Y%m%d%H%M%S}")
    with ExitStack() as stack:
        for folder in log_folders(factory, name):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_folder(folder, wait=False))
        logger = D3RLPyLogger(algo, factory, name, n_steps_per_epoch, with_timestamp=False)
        save_config(algo, logger)
        yield stack.enter_context(closing(logger))


def _new_name(factory: LoggerAdapterFactory, name: str) -> str:
    """Returns `name`, or with a number the first one whose folders this call makes."""
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}_{number}"
        try:
            for folder in log_folders(factory, candidate):
                folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable")
