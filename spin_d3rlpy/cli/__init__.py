"""The command line, `spin-d3rlpy`: one file per group of commands, which only parse and print."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer

from spin_d3rlpy.cli.program import program as app

# Each adds its commands, in the order of the help text.
# isort: off
from spin_d3rlpy.cli import train, evaluate, info, data, plot, bench  # noqa: F401

__all__ = ["app", "main"]

USER_ERROR = 2


def main() -> None:
    """Runs the command line; bad input prints one line to stderr and exits with code 2."""
    from spin_d3rlpy.errors import SpinError
    from spin_envs import InvalidActionError, MissingDependencyError, UnknownTaskError

    # Wherever it stands: whoever saw an error repeats the command with -v at its end.
    arguments = [a for a in sys.argv[1:] if a not in ("-v", "--verbose")]
    verbose = len(arguments) < len(sys.argv) - 1
    with warnings.catch_warnings():
        if not verbose:
            warnings.showwarning = _show_warning
        try:
            app(["--verbose", *arguments] if verbose else arguments)
        except (
            SpinError,
            InvalidActionError,
            MissingDependencyError,
            UnknownTaskError,
            ValueError,
            ImportError,
            OSError,
        ) as error:
            if verbose:
                raise
            typer.echo(f"Error: {error}", err=True)
            raise SystemExit(USER_ERROR) from error


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Warning: {message}", err=True)
