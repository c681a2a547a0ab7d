"""d3rlpy's loggers, each run in a folder of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from d3rlpy.base import save_config
from d3rlpy.logging import D3RLPyLogger, LoggerAdapterFactory

from spin_d3rlpy._compat import log_folders
from spin_d3rlpy.locks import exclusive_folder
from spin_d3rlpy.loop import StageLog


@contextmanager
def open_logger(
    algo: Any, name: str, with_timestamp: bool, factory: LoggerAdapterFactory, epoch_steps: int
) -> Iterator[D3RLPyLogger]:
    """Yields a logger that has logged the configuration.

    Raises:
        FolderInUseError: another run is logging to this folder.
    """
    if with_timestamp:
        name = _new_name(factory, f"{name}_{datetime.now():%Y%m%d%H%M%S}")
    with ExitStack() as stack:
        for folder in log_folders(factory, name):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_folder(folder, wait=False))
        logger = D3RLPyLogger(algo, factory, name, epoch_steps, with_timestamp=False)
        save_config(algo, logger)
        yield stack.enter_context(closing(logger))


class _LoggerLog(StageLog):
    """Logs rows as prefixed metrics of a d3rlpy logger."""

    def __init__(self, logger: D3RLPyLogger, prefix: str) -> None:
        self._logger, self._prefix = logger, prefix
        folder = getattr(logger.adapter, "logdir", None)
        self.folder = None if folder is None else Path(folder)

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name not in ("epoch", "step"):  # the logger's own columns
                self._logger.add_metric(f"{self._prefix}_{name}", value)
        self._logger.commit(int(row["epoch"]), int(row["step"]))


@contextmanager
def stage_log(
    algo: Any,
    name: str,
    with_timestamp: bool,
    factory: LoggerAdapterFactory,
    stage: str,
    prefix: str,
    epoch_steps: int,
) -> Iterator[StageLog]:
    """Yields the log of a first stage, in its own folder `<name>_<stage>`."""
    with open_logger(algo, f"{name}_{stage}", with_timestamp, factory, epoch_steps) as logger:
        yield _LoggerLog(logger, prefix)


def _new_name(factory: LoggerAdapterFactory, name: str) -> str:
    """Returns `name`, numbered if needed, after creating its folders."""
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}_{number}"
        try:
            for folder in log_folders(factory, candidate):
                folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable")
