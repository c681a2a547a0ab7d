"""A page of results: one HTML file without scripts, legible offline, on a phone and in print."""

from __future__ import annotations

import base64
import html
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spin_d3rlpy.files.atomic import write_text

Row = Mapping[str, Any]

# A table with more columns, or a cell of more characters, is wider than a phone.
MOST_COLUMNS = 5
LONG = 60


class Page:
    """Paragraphs, lists, tables and pictures, one after the other.

    Args:
        title: of the page.
        introduction: its first paragraph.
    """

    def __init__(self, title: str, introduction: str) -> None:
        self._title = title
        self._parts = [_element("h1", title), _element("p", introduction)]

    def paragraph(self, text: str, tag: str = "p") -> None:
        """Adds a paragraph or a heading, unless it is empty."""
        if text:
            self._parts.append(_element(tag, text))

    def warning(self, text: str) -> None:
        """Adds a paragraph that stands out, also where there are no colors."""
        self._parts.append(f'<p class="warning">{html.escape(text)}</p>')

    def items(self, texts: Sequence[str]) -> None:
        """Adds a list."""
        if texts:
            inner = "".join(_element("li", text) for text in texts)
            self._parts.append(f"<ul>{inner}</ul>")

    def table(self, rows: Sequence[Row]) -> None:
        """Adds a table of the rows' columns that are not empty everywhere; nothing without rows."""
        if not rows:
            return
        keys = [key for key in rows[0] if any(row[key] != "" for row in rows)]
        cells = {key: [_cell(row[key]) for row in rows] for key in keys}
        of_kind = {key: "number" if _holds_numbers(cells[key]) else "text" for key in keys}
        head = "".join(f'<th class="{of_kind[key]}">{_heading(key)}</th>' for key in keys)
        lines = [
            "".join(
                f'<td class="{of_kind[key]}" data-column="{_heading(key)}">'
                f"{html.escape(cells[key][row])}</td>"
                for key in keys
            )
            for row in range(len(rows))
        ]
        inner = "".join(f"<tr>{line}</tr>" for line in (head, *lines))
        is_wide = len(keys) > MOST_COLUMNS or max(map(len, itertools.chain(*cells.values()))) > LONG
        name = ' class="wide"' if is_wide else ""
        # Wide tables scroll by themselves, the page does not; a phone shows their rows as lists.
        self._parts.append(f'<div class="table"><table{name}>{inner}</table></div>')

    def picture(self, path: Path, alternative: str) -> None:
        """Adds a PNG file, as a part of the page."""
        source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        self._parts.append(f'<img alt="{html.escape(alternative)}" src="{source}">')

    def text(self) -> str:
        """Returns the page as HTML."""
        return _PAGE.format(title=html.escape(self._title), body="\n".join(self._parts))

    def write(self, path: Path) -> None:
        """Writes the page atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.text())


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{html.escape(text)}</{tag}>"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _heading(key: str) -> str:
    return html.escape(key.replace("_", " "))


def _holds_numbers(cells: Sequence[str]) -> bool:
    """Whether the first cell of a column that is not empty is a number, or a share in percent."""
    first = next(cell for cell in cells if cell)
    try:
        float(first.replace(",", "").rstrip(" %"))
    except ValueError:
        return False
    return True


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; color: #111; background: #fff;
       max-width: 72rem; margin: auto; padding: 1rem }}
h1 {{ font-size: 1.5rem; line-height: 1.25 }}
h2 {{ font-size: 1.2rem; margin-top: 2rem }}
h1, h2, p, li {{ max-width: 44rem; overflow-wrap: anywhere }}
.warning {{ border-left: .3rem solid #D55E00; padding: .1rem .7rem }}
.table {{ overflow-x: auto; margin: 1rem 0 }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem }}
th, td {{ padding: .2rem .6rem; border-bottom: 1px solid #ccc; text-align: left }}
th {{ vertical-align: bottom }}
.number {{ text-align: right }}
td {{ white-space: nowrap }}
.wide .text {{ white-space: normal; overflow-wrap: break-word; min-width: 7rem }}
img {{ max-width: min(100%, 56rem) }}
@media (max-width: 40rem) {{
  body {{ padding: .7rem }}
  th, td {{ padding: .2rem .4rem }}
  td {{ white-space: normal }}
  .wide tr:first-child, .wide td:empty {{ display: none }}
  .wide tr {{ display: block; padding: .4rem 0; border-bottom: 1px solid #ccc }}
  .wide td {{ display: block; border: none; padding: .1rem .4rem; text-align: left }}
  .wide td::before {{ content: attr(data-column) ": "; font-weight: 600 }}
}}
@page {{ margin: 1.5cm }}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10pt }}
  table {{ font-size: 8pt }}
  .table {{ overflow: visible }}
  td {{ white-space: normal }}
  h2 {{ break-after: avoid }}
  tr, img, .warning {{ break-inside: avoid }}
}}
</style></head>
<body>
{body}
</body></html>
"""
