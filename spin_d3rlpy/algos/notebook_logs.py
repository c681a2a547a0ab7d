"""Logs on the screen: short lines, and none in a notebook, where the log's files have them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

import structlog
from d3rlpy.logging import LOG, D3RLPyLogger
from d3rlpy.serializable_config import DynamicConfig

from spin_d3rlpy.algos.config import SCALERS
from spin_d3rlpy.errors import shown


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


class BriefLogger(D3RLPyLogger):
    """d3rlpy's logger, whose line of parameters says what is not a default.

    The log's files have all parameters.
    """

    def add_params(self, params: dict[str, Any]) -> None:
        """Writes the configuration to the log's files."""
        self.adapter.write_params(params)
        config = cast(Any, self._algo).config
        LOG.info("Parameters", params=differing_fields(config))


def differing_fields(config: DynamicConfig) -> dict[str, Any]:
    """Returns the fields of a config that are not defaults; scalers by their type."""
    scalers = dict.fromkeys(SCALERS)
    try:
        default = type(config)(**scalers).serialize_to_dict()
    except TypeError:  # a config of another package that has no defaults
        default = {}
    fields = dataclasses.replace(config, **scalers).serialize_to_dict()
    used = {name: getattr(config, name) for name in SCALERS if getattr(config, name) is not None}
    return _differing(fields, default) | {k: scaler.get_type() for k, scaler in used.items()}


def _differing(fields: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and isinstance(default.get(name), Mapping):
            if inner := _differing(value, default[name]):
                differing[name] = inner
        elif name not in default or value != default[name]:
            is_short = isinstance(value, int | float | bool)
            differing[name] = value if is_short else shown(value)
    return differing


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
