"""The command line, `spin-d3rlpy`: one file per group of commands, which only parse and print."""

from __future__ import annotations

from spin_d3rlpy.cli.program import program as app
from spin_d3rlpy.cli.program import run_program

# Each adds its commands, in the order of the help text.
# isort: off
from spin_d3rlpy.cli import train, evaluate, report, tradeoff, info, data, plot  # noqa: F401

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line; bad input prints one line to stderr and exits with code 2."""
    run_program(app)
