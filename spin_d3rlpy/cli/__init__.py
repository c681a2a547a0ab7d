"""The command line, `spin-d3rlpy`: one file per group of commands, which only parse and print."""

from __future__ import annotations

import sys
import warnings

import typer
from gymnasium.error import Error as GymnasiumError

from spin_d3rlpy.cli.program import program as app

# Each adds its commands, in the order of the help text.
# isort: off
from spin_d3rlpy.cli import train, evaluate, report, info, data, plot, bench  # noqa: F401

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line; bad input prints one line to stderr and exits with code 2."""
    from spin_d3rlpy.errors import SpinError

    # Wherever it stands: whoever saw an error repeats the command with -v at its end.
    arguments = [a for a in sys.argv[1:] if a not in ("-v", "--verbose")]
    verbose = len(arguments) < len(sys.argv) - 1
    with warnings.catch_warnings():
        if not verbose:
            warnings.showwarning = lambda text, *_, **__: typer.echo(f"Warning: {text}", err=True)
        try:
            app(["--verbose", *arguments] if verbose else arguments)
        except (SpinError, ValueError, ImportError, OSError, GymnasiumError) as error:
            if verbose:
                raise
            typer.echo(f"Error: {error}", err=True)
            raise SystemExit(2) from error
