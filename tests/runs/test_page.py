"""Tables of pages: numbers to the right, and wide ones as lists on a phone."""

from __future__ import annotations

from spin_d3rlpy.runs.page import Page


def table(*rows: dict[str, object]) -> str:
    page = Page("A title", "What it says.")
    page.table(rows)
    text = page.text()
    return text[text.index('<div class="table">') :]


def test_columns_of_numbers_are_told_from_text() -> None:
    text = table(
        {"who": "the log", "share": "", "steps": 1200, "low_end": "-0.5"},
        {"who": "3 & more", "share": "4.5%", "steps": 7, "low_end": "no answer"},
    )
    assert '<th class="text">who</th>' in text
    for name in ("share", "steps", "low end"):
        assert f'<th class="number">{name}</th>' in text
    assert '<td class="number" data-column="steps">1,200</td>' in text
    assert '<td class="number" data-column="low end">no answer</td>' in text
    assert "3 &amp; more" in text


def test_wide_tables_are_marked() -> None:
    assert "<table>" in table({"a": "short", "b": 1})
    assert '<table class="wide">' in table({"a": "long " * 20})
    assert '<table class="wide">' in table(dict.fromkeys("abcdef", 1))
