"""What the text of a table's cell says: a number, a date, yes or no, a word, or nothing.

Numbers and dates of other locales are told apart from words, so that they can be named.
"""

from __future__ import annotations

import datetime
import re
from typing import Literal

Form = Literal[
    "number", "date", "boolean", "word", "code", "other number", "other date", "no value"
]

BOOLEANS = {"false": 0.0, "no": 0.0, "true": 1.0, "yes": 1.0}
# What pandas takes for an empty cell, and an empty date.
_NANS = ("nan", "-nan", "NaN", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "NaT")
_NAS = ("NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None")
EMPTY = frozenset(("", *_NANS, *_NAS))
# Also empty in a column of numbers, dates, or yes and no; words in a column of words.
NO_VALUE = frozenset(
    ("?", "??", "-", "--", "---", "\u2013", "\u2014", ".", "..", "*", "\\N", "(null)")
)
MARKS = EMPTY | NO_VALUE

_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+){_EXPONENT}")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.I)
_CODE = re.compile(r"0[0-9]")  # a number that begins like this may be a name, as a zip code
_WHOLE = re.compile(r"\+?(-?(?:0|[1-9][0-9]*))(?:\.0*)?")
_OTHER_NUMBER = re.compile(r"[<>≤≥≈~=±+\u2212\-$€£¥ ]*\d[\d.,'\u2019_ \u00a0\u202f]*[%‰°€$£¥ ]*")
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]\.?m\.?)?(?: ?Z|[+-]\d{2}:?\d{2})?"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY_IN_WORDS = rf"(?:\d{{1,4}}(?:st|nd|rd|th)?[ .,/-]*)?{_MONTH}[ .,/-]+(?:\d{{1,2}}[ .,/-]+)?\d+"
_OTHER_DATE = re.compile(
    rf"(?:(?:[a-z]{{2,9}},? )?(?:\d{{1,4}}([./-])\d{{1,2}}\1\d{{1,4}}|\d{{4}}[./-]\d{{1,2}}|"
    rf"{_DAY_IN_WORDS})\.?(?:[T, ]+{_TIME})?|{_TIME})",
    re.I,
)
_BETWEEN = "' \u2019\u00a0\u202f"  # may stand between thousands
_BY_DECIMAL = {
    mark: re.compile(
        rf"[+-]?(?:[0-9]{{1,3}}(?:[{others}][0-9]{{3}})+(?:[{mark}][0-9]*)?"
        rf"|[0-9]+(?:[{mark}][0-9]*)?|[{mark}][0-9]+){_EXPONENT}"
    )
    for mark, others in ((",", f".{_BETWEEN}"), (".", f",{_BETWEEN}"))
}
DECIMALS = tuple(_BY_DECIMAL)


def form_of(text: str, decimal: str | None = None, dates: str | None = None) -> Form:
    """Returns what a cell's text, without spaces around it, looks like.

    Args:
        text: not one of `EMPTY`.
        decimal: the mark before decimals, if it was said; then numbers may have marks between
            thousands and zeros in front.
        dates: a format of dates, as `datetime.strptime` has it, if it was said.
    """
    if text in NO_VALUE:
        return "no value"
    if text.lower() in BOOLEANS:
        return "boolean"
    if dates is not None and days_of(text, dates) is not None:
        return "date"
    if number_of(text, decimal) is not None:
        is_code = decimal is None and _CODE.match(text) is not None
        return "code" if is_code else "number"
    if days_of(text, None) is not None:
        return "date"
    if _OTHER_DATE.fullmatch(text):
        return "other date"
    return "other number" if _OTHER_NUMBER.fullmatch(text) else "word"


def number_of(text: str, decimal: str | None = None) -> float | None:
    """Returns the number that a text is, with `decimal` as of `form_of`; None if it is none."""
    if _INFINITE.fullmatch(text):
        return float(text)
    if decimal is None:
        return float(text) if _NUMBER.fullmatch(text) else None
    if not _BY_DECIMAL[decimal].fullmatch(text):
        return None
    others = _BETWEEN + ",.".replace(decimal, "")
    return float(text.translate(str.maketrans(decimal, ".", others)))


def exact_number(text: str, decimal: str | None = None) -> int | float | None:
    """Returns a text's number, a whole one exactly; None for others and those with zeros in front.

    The text "007" is not the number 7.
    """
    if decimal is None and _CODE.match(text):
        return None
    whole = None if decimal == "," else _WHOLE.fullmatch(text)
    if whole is not None and len(whole[1]) < 400:
        return int(whole[1])
    return number_of(text, decimal)


def as_whole(text: str) -> str | None:
    """Returns a whole number's text without plus sign and decimals, so that 1.0 is 1."""
    whole = _WHOLE.fullmatch(text)
    return None if whole is None else whole[1]


def days_of(text: str, dates: str | None) -> float | None:
    """Returns days since 1970 of a date of the format, or an ISO date; None if it is none.

    One without a time zone counts as UTC.
    """
    moment = None
    if dates is not None:
        moment = _parsed(text, dates)
    if moment is None:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            return None
    return days_since_1970(moment)


def days_since_1970(moment: datetime.datetime) -> float:
    """Returns days, of a moment without a time zone as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(1)


def _parsed(text: str, dates: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, dates)
    except ValueError:
        return None


def formats_of(texts: list[str]) -> list[str]:
    """Returns the formats of dates that fit all texts, as advice."""
    days = ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d"]
    days += ["%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%B %d, %Y"]
    days += ["%Y-%m"]
    formats = [day + time for day in days for time in ("", " %H:%M", " %H:%M:%S")]
    formats += ["%H:%M", "%H:%M:%S", "%I:%M %p"]
    return [f for f in formats if all(_parsed(text, f) is not None for text in texts)]
