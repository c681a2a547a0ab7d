"""For mkdocs: equations as MathML, which browsers draw by themselves and offline."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def to_mathml(text: str) -> str:
    """Replaces the equations in a page's HTML.

    Raises:
        ValueError: an equation has a command that is not known.
    """

    def replace(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        found = convert(html.unescape(match["tex"]).strip(), display=display)
        if "\\" in found or ">&<" in found:  # what is not known stays as it is
            raise ValueError(f"Expected commands that latex2mathml knows; got {match['tex']}")
        return found

    return _EQUATION.sub(replace, text)


def on_page_content(content: str, **_: Any) -> str:
    """Called for each page."""
    return to_mathml(content)
