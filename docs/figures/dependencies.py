"""Draws who imports whom: `python docs/figures/dependencies.py` prints a Mermaid diagram.

A test compares it with the one in docs/explanation/architecture.md; `--write` puts it there.
"""

import argparse
from pathlib import Path

import grimp

PACKAGES = ("spin_d3rlpy", "spin_envs")
PAGE = Path(__file__).parent.parent / "explanation" / "architecture.md"
START, END = "```mermaid\n", "```\n"
# What everything may use says nothing about the structure.
FOUNDATION = {"_compat", "_version", "_quiet_import", "_import_order", "errors", "files", "nvec"}


def diagram() -> str:
    """Returns the packages' parts and their direct imports, transitive ones left out."""
    graph = grimp.build_graph(*PACKAGES)
    imports: dict[str, set[str]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            source, target = _part(module), _part(imported)
            if source != target and not {source, target} & ({"spin_d3rlpy"} | FOUNDATION):
                imports.setdefault(source, set()).add(target)
    lines = [
        f"    {source} --> {target}"
        for source in sorted(imports)
        for target in sorted(imports[source] - _behind(imports, source))
    ]
    return "\n".join(["graph TD", *lines]) + "\n"


def _part(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "spin_d3rlpy" and rest else package


def _behind(imports: dict[str, set[str]], source: str) -> set[str]:
    """What the parts that `source` imports lead to."""
    reached: set[str] = set()
    open_parts = [inner for part in imports[source] for inner in imports.get(part, ())]
    while open_parts:
        part = open_parts.pop()
        if part not in reached:
            reached.add(part)
            open_parts += imports.get(part, ())
    return reached


def main() -> None:
    """Prints the diagram or writes it to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="to the page")
    if parser.parse_args().write:
        before, _, rest = PAGE.read_text().partition(START)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + START + diagram() + END + after)
    else:
        print(diagram(), end="")


if __name__ == "__main__":
    main()
