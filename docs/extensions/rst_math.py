"""For mkdocstrings: equations that docstrings write as `.. math::` become what MathJax draws."""

import re
from typing import Any

import griffe

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<inline>[^\n]*)\n"
    r"(?P<body>(?:(?P=indent) +[^\n]*\n|\s*\n)*)",
    re.M,
)


def to_mathjax(text: str) -> str:
    """Replaces the blocks in a docstring; lines that are aligned by `&` stay so."""

    def replace(match: re.Match[str]) -> str:
        lines = [match["inline"], *match["body"].splitlines()]
        equation = "\n".join(line.strip() for line in lines if line.strip())
        if "&" in equation:
            equation = f"\\begin{{aligned}}\n{equation}\n\\end{{aligned}}"
        return f"{match['indent']}$$\n{equation}\n$$\n\n"

    return _BLOCK.sub(replace, text + "\n")


class RstMath(griffe.Extension):
    """Rewrites every docstring that has an equation."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None and ".. math::" in obj.docstring.value:
            obj.docstring.value = to_mathjax(obj.docstring.value)
