"""Words that docs/style.md retires do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.subprocesses import ROOT

FOLDERS = ("spin_d3rlpy", "envs", "examples", "docs", "tests", "packaging", ".github", ".ci")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "mkdocs.yml")
SUFFIXES = {".py", ".md", ".yml", ".toml", ""}
# This list.
EXCEPTIONS = {
    "tests/test_style.py": {"behaviour", "goes on", "anew"},
}


def words() -> re.Pattern[str]:
    lines = (ROOT / "docs" / "words.txt").read_text().splitlines()
    patterns = [line.split("\t")[0] for line in lines if not line.startswith("#")]
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b", re.I)


def texts() -> list[Path]:
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    found += [ROOT / name for name in FILES]
    skipped = {"__pycache__"}
    return [p for p in found if p.suffix in SUFFIXES and not skipped & set(p.parts)]


def problems(text: str, allowed: set[str]) -> list[str]:
    # A phrase may be broken by the end of a line, inside a comment or a string, too.
    joined = re.sub(r"[\"'#\s]+", " ", text)
    return [m[0] for m in words().finditer(joined) if m[0].lower() not in allowed]


@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_retired_words_do_not_come_back(folder: str) -> None:
    found = {}
    for path in texts():
        name = path.relative_to(ROOT).as_posix()
        if (name.partition("/")[0] if "/" in name else ".") == folder:
            wrong = problems(path.read_text(), EXCEPTIONS.get(name, set()))
            if wrong:
                found[name] = wrong
    assert not found, "docs/words.txt has the words to use instead"


def test_the_check_above_can_fail() -> None:
    assert problems('"The run goes "\n    "on anew."', set()) == ["goes on", "anew"]
    assert not problems("It continues; good behavior, on ongoing work.", set())
