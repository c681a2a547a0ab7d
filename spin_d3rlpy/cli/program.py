"""The program, and adding commands with examples to it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from gymnasium.error import Error as GymnasiumError

F = TypeVar("F", bound=Callable[..., Any])
# Every example in a help text; tests see to it that they can be parsed.
EXAMPLES: list[str] = []


def _lines(title: str, lines: Sequence[str]) -> str:
    # Click keeps the lines of a paragraph that begins so.
    return "\n".join(["\b", f"{title}:", *(f"  {line}" for line in lines)]) if lines else ""


_START = (
    "spin-d3rlpy demo",
    "spin-d3rlpy data list",
    "spin-d3rlpy train spin/cheetah-run-b3/medium-expert-v0",
    "spin-d3rlpy evaluate run",
)
EXAMPLES.extend(_START)

program = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # examples keep their lines
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_lines("Start with", _START),
)


@program.callback()
def set_log(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show d3rlpy's log and tracebacks of errors.")
    ] = False,
) -> None:
    """Offline reinforcement learning for MultiDiscrete actions.

    Every command has --help with examples; reporting commands have --json. Exit codes: 0 success, 1
    a negative result (a bad dataset, a failed job), 2 bad input, 130 interrupted. An interrupted
    command resumes when it is run again.
    """
    if {"-h", "--help"}.isdisjoint(sys.argv):  # help needs no log
        import structlog

        level = logging.INFO if verbose else logging.WARNING
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def group(name: str, text: str) -> typer.Typer:
    """Returns a new group of commands in the program."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    program.add_typer(app, name=name)
    return app


def command(app: typer.Typer, *examples: str, name: str | None = None) -> Callable[[F], F]:
    """Adds the decorated function as a command with these examples in its help."""
    EXAMPLES.extend(examples)
    return app.command(name, epilog=_lines("Examples", examples))


def run_program(app: typer.Typer) -> None:
    """Runs a program; bad input prints one line to stderr and exits with code 2."""
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
