"""Checking that a command line in a text is one that the program takes."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch
import typer

from spin_d3rlpy.cli import app

PROGRAM = "spin-d3rlpy"


def spin_arguments(line: str, program: str = PROGRAM) -> list[str] | None:
    """Returns the arguments of a program in a shell line, or None if it is not run there."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # variables before the command
        words = words[1:]
    n = len(program.split())
    if words[:n] != program.split():
        return None
    for i, word in enumerate(words):
        if word in ("|", ">", "&&", ";"):
            words = words[:i]
            break
    return words[n:]


def parse(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, program: typer.Typer = app
) -> None:
    """Parses a command line as the program does, on a machine with GPUs; runs nothing.

    Raises:
        click.UsageError: there is no such command or option.
    """
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    command: Any = typer.main.get_command(program)
    name = PROGRAM
    context = None
    while True:
        if not arguments and hasattr(command, "commands"):
            raise AssertionError(f"{name} is a group of commands.")
        context = command.make_context(name, list(arguments), parent=context)
        if not hasattr(command, "commands"):
            return
        # Click 8.2 has made it private.
        first = getattr(context, "_protected_args", None) or context.protected_args
        name, command, arguments = command.resolve_command(context, [*first, *context.args])


def require_command(words: list[str]) -> None:
    """Checks that the words begin with the name of a command or of a group of commands."""
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert words[0] in commands, words[0]
    inner = getattr(commands[words[0]], "commands", None)
    assert inner is None or words[1:2] == [] or words[1].strip(",") in inner, words[:2]
