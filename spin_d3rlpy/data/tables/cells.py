"""Reading a column's cells: numbers, dates, yes and no, and words.

What a column holds is decided by all of its cells. Each different cell is judged once; a column of
text that holds nothing but numbers is converted at once.
"""

from __future__ import annotations

import dataclasses
import datetime
import fractions
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data.tables import texts
from spin_d3rlpy.data.tables.columns import EXACT, Bools, Column
from spin_d3rlpy.errors import InvalidDatasetError, InvalidRowError, listed, shown

if TYPE_CHECKING:
    import pyarrow

Floats = NDArray[np.float64]
Kind = Literal["number", "date", "boolean", "category"]

MOST_CATEGORIES = 100
_LONGEST_WORD = 1000  # characters; a policy file keeps the words
_DAY = 86_400_000_000  # microseconds
_FLAGS = "0, 1, false, true, no, yes"
_PLAIN = set("0123456789+-.eE \t\n")  # what Python's numbers may have, less "_", "inf" and "nan"
_CODE_IN_LINES = re.compile(r"^[ \t]*0[0-9]", re.M)
_KIND_OF: dict[texts.Form, Kind] = {"number": "number", "date": "date", "boolean": "boolean"}
_KIND_IN_WORDS: dict[Kind, str] = {  # what a column of this kind holds; categories list theirs
    "number": "numbers",
    "date": "dates such as 2024-05-31 or 2024-05-31T08:30:00",
    "boolean": "true or false, yes or no, 1 or 0",
}


@dataclasses.dataclass(frozen=True)
class Locale:
    """How a column's text writes numbers and dates, where it was said.

    Attributes:
        decimal: the mark before decimals, "," or "."; None: ".", and no mark between thousands.
        dates: a format as of `datetime.strptime`; None: ISO 8601.
    """

    decimal: str | None = None
    dates: str | None = None


PLAIN = Locale()


def is_empty(column: Column, known: Collection[str] = (), marks: bool = True) -> Bools:
    """Returns which cells are empty, or text that says so, such as NA.

    Args:
        column: of a table.
        known: texts that are values all the same.
        marks: whether "?", "-" and their like are empty, as in columns of numbers; words may be so.
    """
    if column.is_typed or column.is_dates:
        return column.empty
    none = (texts.MARKS if marks else texts.EMPTY).difference(known)
    return _says_nothing(column, none) | column.empty


def _says_nothing(column: Column, none: frozenset[str]) -> Bools:
    """Returns which cells are one of the texts, spaces around it aside."""
    if column.is_text_of_arrow:
        import pyarrow
        from pyarrow import compute

        trimmed = compute.utf8_trim_whitespace(column.values)
        is_one = compute.is_in(trimmed, value_set=pyarrow.array(sorted(none), trimmed.type))
        return np.asarray(is_one.to_numpy()).astype(bool)
    cells = column.values.tolist()
    different = {cell for cell in cells if isinstance(cell, str)}
    if any(cell in none or cell.strip() in none for cell in different):
        return np.array([isinstance(cell, str) and cell.strip() in none for cell in cells], bool)
    return np.zeros(len(cells), bool)


def kind_of(column: Column, locale: Locale, is_category: bool = False) -> tuple[Kind, Bools]:
    """Returns what all cells of a column are, and which are empty.

    Args:
        column: of a table.
        locale: how its text writes numbers and dates.
        is_category: whether its values are names, whatever they look like.

    Raises:
        InvalidDatasetError: they are of several kinds, or look like numbers or dates of another
            locale, or like codes; the text names row and column.
    """
    if is_category:
        return "category", is_empty(column, marks=False)
    if column.is_dates:
        return "date", column.empty
    if column.is_typed:
        return ("boolean" if column.values.dtype.kind == "b" else "number"), column.empty
    if _numbers_at_once(column, locale) is not None:
        return "number", is_empty(column)
    codes, cells = column.distinct()
    forms = np.array([_form(cell, locale) for cell in cells] + ["no value"], object)
    kinds = set(forms.tolist()) - {"no value"}
    only_marks = not kinds
    if only_marks or ("word" in kinds and kinds <= {"word", "other number", "code"}):
        return "category", is_empty(column, marks=False)
    if kinds == {"boolean", "number"}:
        numbers = [c for c, form in zip(cells, forms, strict=False) if form == "number"]
        if all(_number(cell, locale) in (0.0, 1.0) for cell in numbers):
            return "boolean", is_empty(column)
    if len(kinds) > 1 or not kinds <= _KIND_OF.keys():
        _refuse_mixture(column, codes, cells, forms, locale)
    return _KIND_OF[kinds.pop()], is_empty(column)


def _form(cell: object, locale: Locale) -> texts.Form:
    if isinstance(cell, str):
        text = cell.strip()
        return "no value" if text in texts.EMPTY else texts.form_of(text, *_fields(locale))
    if isinstance(cell, bool):
        return "boolean"
    return "date" if isinstance(cell, datetime.date) else "number"


def _fields(locale: Locale) -> tuple[str | None, str | None]:
    return locale.decimal, locale.dates


def _refuse_mixture(
    column: Column,
    codes: NDArray[np.int64],
    cells: list[Any],
    forms: NDArray[Any],
    locale: Locale,
) -> NoReturn:
    """Raises an error that names the first cell of another form than most have."""
    counts = np.bincount(codes[codes >= 0], minlength=len(cells))
    by_form = dict.fromkeys(map(str, _KIND_OF), 0) | dict.fromkeys(forms.tolist(), 0)
    for form, count in zip(forms.tolist()[:-1], counts.tolist(), strict=True):
        by_form[form] += count
    by_form.pop("no value", None)
    usual = max(by_form, key=lambda form: by_form[form])
    if usual in _KIND_OF:
        row = int((np.isin(forms, [usual, "no value"], invert=True)[codes]).argmax())
        raise InvalidRowError(
            _expected(_KIND_OF[usual], column, row, locale, str(forms[codes[row]])), row
        )
    examples = [str(c) for c, form in zip(cells, forms, strict=False) if form == usual]
    wanted = np.isin(forms, list(_KIND_OF)) if usual == "word" else forms == usual
    row = int(wanted[codes].argmax())
    cell = f"Row {row} has {shown(column.name)} = {shown(column.cell(row))}"
    raise InvalidRowError(f"{cell}, {_advice_on(usual, examples, column)}", row)


def _advice_on(form: str, examples: list[str], column: Column) -> str:
    """Returns what to do about text that looks like something else, the end of a sentence."""
    name = repr(column.name)
    if form == "other date":
        fitting = texts.formats_of([text.strip() for text in examples])
        formats = " or ".join(f"dates={{{name}: {f!r}}}" for f in fitting[:3])
        return (
            "which looks like a date or time that is not ISO 8601. Say how it is written, such as "
            f"{formats or f'dates={{{name}: <format>}} (as datetime.strptime has it)'}, or list "
            "the column in categories= if its values are names."
        )
    if form == "other number":
        return (
            f"which looks like a number that is written otherwise. Pass decimal={{{name}: ','}} "
            f"(or decimal={{{name}: '.'}}) if marks between decimals or thousands are all; "
            "convert percentages, currencies and limits such as <5 to numbers yourself, or list "
            "the column in categories= if its values are names."
        )
    if form == "code":
        return (
            "with a zero in front, as names have. List the column in categories=, or pass "
            f"decimal={{{name}: '.'}} if its values are numbers."
        )
    return (
        "but most rows have words. Correct it, or list the column in categories= if its values are "
        "names."
    )


def _expected(
    kind: Kind,
    column: Column,
    row: int,
    locale: Locale,
    form: str | None = None,
    is_state: bool = True,
) -> str:
    cell = column.cell(row)
    text = (
        f"Expected column {shown(column.name)} to hold {_KIND_IN_WORDS[kind]}, row {row} has "
        f"{shown(cell)}"
    )
    if form is None:
        form = _form(cell, locale)
    if form in ("other number", "other date", "code") and isinstance(cell, str):
        return f"{text}, {_advice_on(form, [cell], column)}"
    if not is_state:
        return f"{text}. Correct it or, if it says that there is no value, leave it empty."
    return (
        f"{text}. Correct it or, if the column's values are names, list it in categories=; if it "
        "says that there is no value, leave it empty."
    )


def _numbers_at_once(column: Column, locale: Locale) -> Floats | None:
    """Returns the numbers of text that has nothing else, NaN where empty; None if there is more."""
    if locale != PLAIN or column.is_typed or column.is_dates:
        return None
    return text_as_numbers(column.values) if column.is_text_of_arrow else _of_texts(column)


def _of_texts(column: Column) -> Floats | None:
    cells = column.values.tolist()
    try:
        letters = set("\n".join(cells))
    except TypeError:  # not only text
        return None
    if not letters <= _PLAIN or "" in cells:
        empty = is_empty(column)
        if not empty.any():
            return None
        cells = ["nan" if skip else cell for cell, skip in zip(cells, empty.tolist(), strict=True)]
        if not set("\n".join(cells)) <= _PLAIN | set("nan"):
            return None
    try:
        numbers = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    return None if _CODE_IN_LINES.search("\n".join(cells)) else numbers


def text_as_numbers(text: pyarrow.ChunkedArray) -> Floats | None:
    """Returns the numbers of text that has nothing else, NaN where empty; None if there is more."""
    import pyarrow
    from pyarrow import compute

    numbers = _cast(text)
    if numbers is not None:
        return numbers
    text = compute.utf8_trim_whitespace(text)
    marks = compute.is_in(text, value_set=pyarrow.array(sorted(texts.MARKS), text.type))
    return _cast(compute.if_else(marks, None, text))


def _cast(text: pyarrow.ChunkedArray) -> Floats | None:
    """Returns the numbers of text that has nothing else, NaN where it is null."""
    import pyarrow
    from pyarrow import compute

    try:
        cast = text.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return None
    numbers: Floats = cast.to_numpy()
    if np.count_nonzero(np.isfinite(numbers)) + cast.null_count < len(numbers):
        return None  # infinite, or "nan"
    zeros = text.filter(compute.starts_with(text, "0"))  # a regular expression is slow
    is_code = compute.match_substring_regex(zeros, "^0[0-9]")
    return None if compute.any(is_code).as_py() else numbers


def typed(column: Column, locale: Locale = PLAIN) -> Column:
    """Returns a column of text that holds nothing but numbers as one of numbers, others as is."""
    numbers = _numbers_at_once(column, locale)
    return column if numbers is None else Column(column.name, numbers, np.isnan(numbers))


def read_numbers(column: Column, locale: Locale = PLAIN, is_state: bool = True) -> Floats:
    """Returns a column's numbers `(rows,)`; NaN where it is empty.

    Args:
        column: of a table.
        locale: how its text writes numbers.
        is_state: whether its values might be names, for the advice in an error.

    Raises:
        InvalidDatasetError: a cell is no number; the text names row and column.
    """
    if column.is_typed:
        values: Floats = column.values.astype(np.float64)
        values[column.empty] = np.nan
        return values
    at_once = _numbers_at_once(column, locale)
    if at_once is not None:
        return at_once
    return _by_value(column, "number", locale, lambda cell: _number(cell, locale), is_state)


def read_days(column: Column, locale: Locale = PLAIN) -> Floats:
    """Returns a column's dates as days since 1970 `(rows,)`; NaN where it is empty.

    Raises:
        InvalidDatasetError: a cell is no date; the text names row and column.
    """
    if column.is_dates:
        days = column.values.astype(np.int64) / _units_a_day(column.values)
        days[column.empty] = np.nan
        return np.asarray(days, np.float64)
    return _by_value(column, "date", locale, lambda cell: _days(cell, locale))


def _units_a_day(dates: NDArray[Any]) -> int:
    return _DAY if np.datetime_data(dates.dtype)[0] == "us" else _DAY // 1_000_000


def read_booleans(column: Column, locale: Locale = PLAIN) -> Floats:
    """Returns 1 where a column is true, 0 where it is false, NaN where it is empty.

    Raises:
        InvalidDatasetError: a cell is neither; the text names row and column.
    """
    return _by_value(column, "boolean", locale, _boolean)


def read_flags(column: Column) -> Bools:
    """Returns which cells are 1, true or yes; False in empty ones.

    Raises:
        InvalidDatasetError: a cell is no flag; the text names row and column.
    """
    codes, cells = column.distinct()
    flags = [_boolean(cell) for cell in cells]
    empty = is_empty(column, marks=False)  # what "?" means for an end or a mask is to be said
    unknown = np.array([*(flag is None for flag in flags), False], bool)[codes] & ~empty
    if unknown.any():
        row = int(unknown.argmax())
        raise InvalidRowError(
            f"Row {row} has {shown(column.name)} = {shown(column.cell(row))}, which is not one of "
            f"its choices: {_FLAGS}.",
            row,
        )
    return np.array([*(flag == 1.0 for flag in flags), False], bool)[codes] & ~empty


def _by_value(
    column: Column,
    kind: Kind,
    locale: Locale,
    read: Callable[[Any], float | None],
    is_state: bool = True,
) -> Floats:
    """Reads each different cell once."""
    codes, cells = column.distinct()
    empty = is_empty(column)
    numbers = [read(cell) for cell in cells]
    bad = np.array([*(number is None for number in numbers), False], bool)[codes] & ~empty
    if bad.any():
        row = int(bad.argmax())
        raise InvalidRowError(_expected(kind, column, row, locale, is_state=is_state), row)
    values = np.array([*(math.nan if x is None else x for x in numbers), math.nan])[codes]
    values[empty] = np.nan
    return np.asarray(values, np.float64)


def _number(cell: object, locale: Locale) -> float | None:
    if isinstance(cell, str):
        text = cell.strip()
        number = texts.number_of(text, locale.decimal)
        is_code = number is not None and texts.form_of(text, locale.decimal) == "code"
        return None if is_code else number
    if not isinstance(cell, int | float | Decimal | fractions.Fraction):
        return None
    try:
        return float(cell)
    except OverflowError:  # such as 10**400
        return math.inf if cell > 0 else -math.inf


def _days(cell: object, locale: Locale) -> float | None:
    if isinstance(cell, datetime.datetime):
        return texts.days_since_1970(cell)
    if isinstance(cell, datetime.date):
        return texts.days_since_1970(datetime.datetime.combine(cell, datetime.time()))
    return texts.days_of(cell.strip(), locale.dates) if isinstance(cell, str) else None


def _boolean(cell: object) -> float | None:
    if isinstance(cell, str) and cell.strip().lower() in texts.BOOLEANS:
        return texts.BOOLEANS[cell.strip().lower()]
    number = _number(cell, PLAIN)
    return number if number in (0.0, 1.0) else None


def words_of(cells: Iterable[Any]) -> list[str]:
    """Returns a column's different cells as words.

    Where all are whole numbers they are written without decimals, so that 1 and 1.0 are one word;
    the texts "250.1" and "250.10" are two.
    """
    words = [cell.strip() if isinstance(cell, str) else _written(cell) for cell in cells]
    whole = [texts.as_whole(word) for word in words if word not in texts.EMPTY]
    if None in whole:
        return words
    return [word if word in texts.EMPTY else texts.as_whole(word) or word for word in words]


def _written(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    return str(cell)


def learn_words(column: Column, empty: Bools) -> list[str]:
    """Returns the different words of cells that are not empty, in order.

    Raises:
        InvalidDatasetError: there are more than 100 of them, or one is a text of over 1,000
            characters.
    """
    codes, cells = column.distinct()
    used = np.unique(codes[~empty]).tolist()
    words = sorted(set(words_of(cells[i] for i in used)))
    name = shown(column.name)
    if len(words) > MOST_CATEGORIES:
        raise InvalidDatasetError(
            f"Column {name} has {len(words):,} different words, more than {MOST_CATEGORIES}: "
            f"{listed(words[:3])}, ... Group them, or leave the column out of observations=."
        )
    for word in words:
        if len(word) > _LONGEST_WORD:
            raise InvalidDatasetError(
                f"Column {name} has a text of {len(word):,} characters, {shown(word)}: it is no "
                "name. Leave the column out of observations=."
            )
    return words


def read_words(column: Column, known: Sequence[str]) -> Floats:
    """Returns the positions of a column's words among the known ones, `(rows,)`; NaN if empty.

    Raises:
        InvalidDatasetError: a word that is not known; the text names row and column.
    """
    codes, cells = column.distinct()
    empty = is_empty(column, known, marks=False)
    position = {word: i for i, word in enumerate(known)}
    places: list[float] = []
    for word in [cell.strip() if isinstance(cell, str) else _written(cell) for cell in cells]:
        place = position.get(word, position.get(texts.as_whole(word) or word))
        places.append(math.nan if place is None else place)
    values = np.array([*places, math.nan])[codes]
    unknown = np.isnan(values) & ~empty
    if unknown.any():
        row = int(unknown.argmax())
        raise InvalidRowError(
            f"Expected column {shown(column.name)} to hold one of: {listed(known)}; row {row} has "
            f"{shown(column.cell(row))}. Correct it.",
            row,
        )
    values[empty] = np.nan
    return np.asarray(values, np.float64)


def read_order(column: Column, locale: Locale = PLAIN) -> NDArray[Any]:
    """Returns numbers `(rows,)` in the order of a column's numbers or dates.

    Whole numbers are compared exactly, also those that float64 cannot hold.

    Raises:
        InvalidDatasetError: a cell is empty, or neither; the text names row and column.
    """
    empty = is_empty(column)
    if empty.any():
        row = int(empty.argmax())
        raise InvalidRowError(f"Row {row} has no {shown(column.name)}, by which to order.", row)
    if column.is_dates or column.is_typed:
        return np.asarray(column.values)
    if kind_of(column, locale)[0] == "date":
        return read_days(column, locale)
    numbers = read_numbers(column, locale)
    if np.abs(numbers).max(initial=0.0) < EXACT:
        return numbers
    codes, cells = column.distinct()
    exact: list[Any] = [
        texts.exact_number(cell.strip(), locale.decimal) if isinstance(cell, str) else cell
        for cell in cells
    ]
    rank = {number: i for i, number in enumerate(sorted(set(exact)))}
    return np.array([rank[number] for number in exact])[codes]
