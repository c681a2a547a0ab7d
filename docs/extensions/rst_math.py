"""For mkdocstrings: equations that docstrings write in reStructuredText become Markdown's."""

import re
from typing import Any

import griffe

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<inline>[^\n]*)\n"
    r"(?P<body>(?:(?P=indent) +[^\n]*\n|\s*\n)*)",
    re.M,
)
_INLINE = re.compile(r":math:`([^`]+)`")


def to_equations(text: str) -> str:
    """Replaces the equations in a docstring; lines that are aligned by `&` stay so."""

    def replace(match: re.Match[str]) -> str:
        lines = [match["inline"], *match["body"].splitlines()]
        equation = "\n".join(line.strip() for line in lines if line.strip())
        if "&" in equation:
            equation = f"\\begin{{split}}\n{equation}\n\\end{{split}}"
        return f"{match['indent']}$$\n{equation}\n$$\n\n"

    return _INLINE.sub(r"\\(\1\\)", _BLOCK.sub(replace, text + "\n"))


class RstMath(griffe.Extension):
    """Rewrites every docstring that has an equation."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None and "math:" in obj.docstring.value:
            obj.docstring.value = to_equations(obj.docstring.value)
