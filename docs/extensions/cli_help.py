"""For mkdocs: fills the page of the command line with what `--help` says."""

from typing import Any

import typer
from typer.testing import CliRunner

from spin_d3rlpy.cli import app

PAGE = "reference/cli.md"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page."""
    if page.file.src_uri != PAGE:
        return markdown
    parts = [markdown, _help("spin-d3rlpy", [])]
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if command.hidden:
            continue
        parts.append(_help(f"spin-d3rlpy {name}", [name]))
        for inner in getattr(command, "commands", {}):
            parts.append(_help(f"spin-d3rlpy {name} {inner}", [name, inner]))
    return "\n\n".join(parts)


def _help(title: str, arguments: list[str]) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], prog_name="spin-d3rlpy")
    level = "##" if len(arguments) < 2 else "###"
    return f"{level} {title}\n\n```text\n{result.output.rstrip()}\n```"
