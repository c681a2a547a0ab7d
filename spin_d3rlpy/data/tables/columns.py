"""One column of a table, whatever library made it: numbers, dates or objects, and empty cells.

pandas, polars and pyarrow are asked for the cells that are not empty, so that integers stay
integers; none of them is imported.
"""

from __future__ import annotations

import dataclasses
import datetime
import fractions
import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, Sized
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError, listed, shown

if TYPE_CHECKING:
    import pyarrow

Bools: TypeAlias = NDArray[np.bool_]
Name: TypeAlias = str | int

_NUMBERS = "biuf"  # kinds of numpy's types
_MOST_COUNTED = 2**16  # between the largest and the smallest of whole numbers
EXACT = 2**53  # whole numbers up to this are exact as float64
_CELLS = (str, bool, int, float, Decimal, fractions.Fraction, datetime.date)
_KINDS_IN_WORDS = {
    "m": "durations. Convert them to numbers, such as days",
    "S": "bytes. Decode them to text",
    "c": "complex numbers. Make two columns of them",
}


class _Series(Protocol):
    """A column of pandas or polars, neither of which is imported."""

    ndim: int
    dtype: object

    def isna(self) -> object: ...

    def is_null(self) -> _Series: ...

    def drop_nulls(self) -> _Series: ...

    def to_numpy(self) -> object: ...

    def __getitem__(self, rows: Bools) -> _Series: ...


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's cells.

    Attributes:
        name: of the column.
        values: `(rows,)`: numbers, truth values, dates (datetime64), Python objects, or text as
            pyarrow's `ChunkedArray`; anything in empty cells.
        empty: `(rows,)`: without a value. Text that means this, such as "NA", is not counted here.
    """

    name: Name
    values: Any
    empty: Bools

    def __len__(self) -> int:
        return len(self.empty)

    @property
    def is_text_of_arrow(self) -> bool:
        """Whether `values` is pyarrow's."""
        return not isinstance(self.values, np.ndarray)

    @property
    def is_typed(self) -> bool:
        """Whether `values` is an array of numbers or truth values."""
        return not self.is_text_of_arrow and self.values.dtype.kind in _NUMBERS

    @property
    def is_dates(self) -> bool:
        """Whether `values` is an array of dates."""
        return not self.is_text_of_arrow and self.values.dtype.kind == "M"

    def cell(self, row: int) -> Any:
        """Returns a cell as a Python object; None if it is empty."""
        if self.empty[row]:
            return None
        value = self.values[row]
        return value.as_py() if self.is_text_of_arrow else as_python(value)

    def distinct(self) -> tuple[NDArray[np.int64], list[Any]]:
        """Returns the number of each row's value, `(rows,)`, -1 if empty, and the values."""
        codes = np.full(len(self), -1, np.int64)
        filled = ~self.empty
        if self.is_text_of_arrow:
            encoded = self.values.dictionary_encode().combine_chunks()
            codes[filled] = encoded.indices.drop_null().to_numpy()
            return codes, encoded.dictionary.to_pylist()
        cells = self.values[filled]
        if cells.dtype.kind in "biu" and _span(cells) <= _MOST_COUNTED:
            counted, codes[filled] = _counted(cells)
            return codes, counted
        if cells.dtype.kind != "O":
            values, codes[filled] = np.unique(cells, return_inverse=True)
            return codes, [as_python(value) for value in values]
        numbered: dict[tuple[type, Any], int] = {}
        keys = [(type(cell), cell) for cell in cells.tolist()]  # 1, 1.0 and True are equal
        try:
            codes[filled] = [numbered.setdefault(key, len(numbered)) for key in keys]
        except TypeError as error:  # not hashable
            raise _refused(self.name, f"a cell that is a collection ({error})") from error
        return codes, [value for _, value in numbered]


def _span(whole: NDArray[np.integer[Any]]) -> int:
    """Returns the difference between the largest and the smallest of whole numbers."""
    return int(whole.max()) - int(whole.min()) if len(whole) else 0


def _counted(whole: NDArray[np.integer[Any]]) -> tuple[list[Any], NDArray[np.int64]]:
    """Returns the different numbers in order and each one's place, without sorting."""
    if not len(whole):
        return [], np.empty(0, np.int64)
    least = whole.min().astype(np.uint64)  # modulo 2**64 differences of all types are right
    above = (whole.astype(np.uint64) - least).view(np.int64)
    there = np.flatnonzero(np.bincount(above))
    place = np.zeros(int(there[-1]) + 1, np.int64)
    place[there] = np.arange(len(there))
    values = (there.astype(np.uint64) + least).astype(whole.dtype)
    return values.tolist(), place[above]


def as_python(value: object) -> Any:
    """Returns a cell of an array as Python's object; dates of any unit as a `datetime`."""
    if isinstance(value, np.datetime64):
        moment = value.astype("datetime64[us]").item()
        return moment if isinstance(moment, datetime.datetime) else str(value)
    if isinstance(value, np.timedelta64) or not isinstance(value, np.generic):
        return value
    return value.item()


def joined(pieces: Iterator[Column], rows: int) -> Column:
    """Returns a column of pieces that follow each other, which need memory once.

    Args:
        pieces: of a column, with the same kind of values.
        rows: of all of them.
    """
    first = next(pieces, None)
    if first is None:
        return Column("", np.empty(0), np.empty(0, bool))
    if len(first) == rows:
        return first
    every = itertools.chain([first], pieces)
    if first.is_text_of_arrow:
        import pyarrow

        columns = list(every)
        chunks = [chunk for column in columns for chunk in column.values.chunks]
        empty = np.concatenate([column.empty for column in columns])
        return Column(first.name, pyarrow.chunked_array(chunks, first.values.type), empty)
    values, empty = np.empty(rows, first.values.dtype), np.empty(rows, bool)
    at = 0
    for piece in every:
        if piece.values.dtype != values.dtype:
            values = values.astype(object)
        values[at : at + len(piece)] = piece.values
        empty[at : at + len(piece)] = piece.empty
        at += len(piece)
    return Column(first.name, values, empty)


def place_of(name: Name, names: Sequence[Any], hint: str = "") -> int:
    """Returns the number of the column of this name.

    Args:
        name: of a column; one that is not there may also stand for the only one that is written
            so, such as 0 for "0" in a file.
        names: of all columns.
        hint: added to the error.

    Raises:
        InvalidDatasetError: it is not there, or twice.
    """
    exact = [i for i, known in enumerate(names) if type(known) is type(name) and known == name]
    exact = exact or [i for i, known in enumerate(names) if str(known).strip() == str(name).strip()]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise InvalidDatasetError(
            f"There are {len(exact)} columns {shown(name)}. Give each a name of its own."
        )
    raise InvalidDatasetError(f"There is no column {shown(name)}; columns: {listed(names)}.{hint}")


def as_column(raw: object, name: Name) -> Column:
    """Returns a user's column.

    Args:
        raw: a sequence, an array, or a column of pandas, polars or pyarrow.
        name: of the column.

    Raises:
        InvalidDatasetError: it is no column, or of a type that cannot be read.
    """
    library = type(raw).__module__.partition(".")[0]
    read: Callable[[Any, Name], Column] = {
        "pandas": _of_pandas,
        "polars": _of_polars,
        "pyarrow": _of_arrow,
    }.get(library, _of_sequence)
    try:
        return read(raw, name)
    except (InvalidDatasetError, MemoryError):
        raise
    except Exception as error:  # any of another library
        raise _refused(name, f"cells of a type that cannot be read ({shown(error)})") from error


def _refused(name: Name, content: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        f"Expected column {shown(name)} to hold numbers, dates, text, or true and false, one in "
        f"each row; it has {content}."
    )


def _of_pandas(raw: _Series, name: Name) -> Column:
    if raw.ndim != 1:
        raise _refused(name, f"{raw.ndim} dimensions, perhaps because several have this name")
    empty = np.asarray(raw.isna(), bool)
    kept = raw[~empty]
    if getattr(raw.dtype, "tz", None) is not None:
        return _filled(np.asarray(kept, "datetime64[us]"), empty, name)
    return _filled(np.asarray(kept.to_numpy()), empty, name)


def _of_polars(raw: _Series, name: Name) -> Column:
    if not hasattr(raw, "is_null"):  # a data frame, or one that is not computed yet
        raise _refused(name, f"a {type(raw).__name__}")
    return _filled(
        np.asarray(raw.drop_nulls().to_numpy()), np.asarray(raw.is_null().to_numpy(), bool), name
    )


def _of_arrow(raw: pyarrow.ChunkedArray, name: Name) -> Column:
    import pyarrow
    from pyarrow import types

    if isinstance(raw, pyarrow.Array):
        raw = pyarrow.chunked_array([raw])
    if types.is_dictionary(raw.type):  # whose values may be null, too
        raw = raw.cast(raw.type.value_type)
    empty = np.asarray(raw.is_null().to_numpy(), bool)
    kind = raw.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Column(name, raw.cast(pyarrow.large_string()), empty)
    kept = raw.drop_null() if empty.any() else raw
    return _filled(kept.to_numpy(), empty, name)


def _of_sequence(raw: object, name: Name) -> Column:
    if isinstance(raw, np.ma.MaskedArray):
        empty = np.ma.getmaskarray(raw)
        return _filled(np.asarray(raw.data)[~empty], empty, name)
    if isinstance(raw, str | bytes | Mapping | Set) or not isinstance(raw, Sized):
        raise InvalidDatasetError(
            f"Expected column {shown(name)} to be a list of cells, one for each row, got "
            f"{shown(raw)}. For a single row, pass a list of one cell."
        )
    cells = raw if not isinstance(raw, Sequence) or isinstance(raw, range) else _array_of(raw)
    array = np.asarray(cells)
    if array.ndim == 0:
        raise InvalidDatasetError(
            f"Expected column {shown(name)} to be a list of cells, got {shown(raw)}."
        )
    return _filled(array, np.zeros(len(array), bool), name)


def _array_of(cells: Sequence[Any]) -> NDArray[Any]:
    """Returns an array of a list without changing cells, as numpy would where types are mixed."""
    kinds = set(map(type, cells))
    if kinds <= {bool} or kinds <= {float} or kinds == {int}:
        array = np.asarray(cells)
        if array.dtype.kind in "biuO" or kinds <= {float}:
            return array
    if kinds == {int, float} and all(abs(c) <= EXACT for c in cells if type(c) is int):
        return np.asarray(cells, np.float64)
    return np.fromiter(cells, object, len(cells))


def _filled(kept: NDArray[Any], empty: Bools, name: Name) -> Column:
    """Returns a column of the cells that are not empty, `(filled,)`."""
    if kept.ndim != 1:
        raise _refused(name, f"cells of shape {kept.shape[1:]}")
    kept = _native(kept)
    kind = kept.dtype.kind
    if kind not in "biufMO":
        described = _KINDS_IN_WORDS.get(kind, f"cells of type {kept.dtype}")
        raise _refused(name, described)
    if kind == "O":
        kept, null = _checked_objects(kept, name)
    else:
        null = np.asarray(kept != kept) if kind in "fM" else np.zeros(len(kept), bool)
    if not empty.any():
        return Column(name, kept, null)
    values = np.zeros(len(empty), kept.dtype)
    values[~empty] = kept
    empty = empty.copy()
    empty[~empty] = null
    return Column(name, values, empty)


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an array of this machine's byte order, text as objects."""
    kind, dtype = array.dtype.kind, array.dtype
    if kind in "UT":
        return array.astype(object)
    if kind == "f" and dtype.itemsize > 8:
        return array.astype(np.float64)
    if kind == "M":
        # Coarse units reach further than microseconds do.
        fine = np.datetime_data(dtype)[0] in ("ms", "us", "ns", "ps", "fs", "as")
        return array.astype("datetime64[us]" if fine else "datetime64[s]")
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _checked_objects(cells: NDArray[Any], name: Name) -> tuple[NDArray[Any], Bools]:
    """Returns objects, as numbers if all are whole ones of 64 bits, and which are empty."""
    kinds = set(map(type, cells.tolist()))
    if kinds == {str}:
        return cells, np.zeros(len(cells), bool)
    plain = [as_python(cell) for cell in cells.tolist()]
    null = np.array([is_null(cell) for cell in plain], bool)
    for cell, skip in zip(plain, null.tolist(), strict=True):
        if not skip and not isinstance(cell, _CELLS):
            raise _refused(name, f"{shown(cell)} of type {type(cell).__name__}")
    plain = [str(cell) if isinstance(cell, str) else cell for cell in plain]
    kinds = {type(cell) for cell, skip in zip(plain, null, strict=True) if not skip}
    for kind, dtypes in ((int, (np.int64, np.uint64)), (bool, (np.bool_,)), (float, (np.float64,))):
        for dtype in dtypes if kinds == {kind} else ():
            try:
                zero = kind(0)
                return np.array(
                    [zero if skip else cell for cell, skip in zip(plain, null, strict=True)], dtype
                ), null
            except OverflowError:
                continue
    return np.fromiter(plain, object, len(plain)), null


def is_null(value: object) -> bool:
    """Returns whether a Python object stands for no value: None, NaN, pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, numbers.Real):
        return bool(value != value)
    return isinstance(value, str) and value == "NaT"
