"""Results as CSV, JSON and text tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spin_d3rlpy.errors import shown
from spin_d3rlpy.files.atomic import write_text


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Atomically writes rows with the union of their keys as header; missing values are empty."""
    write_text(path, csv_text(rows))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what `write_csv` writes."""
    text = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns a CSV file's rows as dictionaries."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Atomically writes a JSON file."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON file's mapping; raises ValueError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply.") from error
    except ValueError as error:  # of JSON, of UTF-8 or of a number that is too long
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"Expected {path} to hold a JSON object, got {shown(content)}.")
    return content


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as an aligned text table with the first row's keys as header."""
    table = [list(rows[0]), *([str(row[key]) for key in rows[0]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    lines = []
    for first, *others in table:  # names to the left, numbers to the right
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)
