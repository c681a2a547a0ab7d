"""Reading untrusted pickles of NumPy arrays without executing anything in them."""

from __future__ import annotations

import math
import os
import pickle
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError

_NUMBER = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
# Names of classes that published replay buffers consist of. Inert objects take their place.
_RECORDS = ("ReplayBuffer", "Buffer", "ReplayMemory", "Memory", "Transition", "Experience")
_MAX_ARGUMENTS = 16


class Record:
    """Placeholder of an instance of a class that is not imported."""

    arguments: tuple[Any, ...]  # of the class's constructor
    state: dict[str, Any]  # its attributes

    # Not __init__, which some ways of making an object do not call.
    def __new__(cls, *arguments: Any) -> Record:
        # A file can pass one long tuple again and again: each call would copy it.
        if len(arguments) > _MAX_ARGUMENTS:
            raise pickle.UnpicklingError(f"an object made of {len(arguments)} arguments")
        made = super().__new__(cls)
        made.arguments, made.state = arguments, {}
        return made

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("an object whose state is no dictionary")
        self.state = state


class _Type:
    """Placeholder of a `numpy.dtype` of a plain number."""

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        if not (isinstance(code, str) and _NUMBER.fullmatch(code)):
            raise pickle.UnpicklingError(f"an array of type {code!r}, which is not a number's")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        byte_order = state[1]
        if byte_order not in ("<", ">", "=", "|") or any(x is not None for x in state[2:5]):
            raise pickle.UnpicklingError("an array of a structured type")
        if byte_order in "<>":
            self.dtype = self.dtype.newbyteorder(byte_order)


class _Array:
    """Placeholder of a `numpy.ndarray`; content must have the declared size."""

    __slots__ = ("array",)
    array: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.array = _to_array(shape, kind, data, "F" if fortran else "C")


def _to_array(shape: Any, kind: Any, data: Any, order: Any) -> NDArray[Any]:
    """Returns a view of `data`, without copying."""
    sizes_ok = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not (sizes_ok and isinstance(kind, _Type) and isinstance(data, bytes | bytearray)):
        raise pickle.UnpicklingError("an array that is not one of numbers")
    if math.prod(shape) * kind.dtype.itemsize != len(data):
        raise pickle.UnpicklingError(f"an array of shape {shape} with {len(data)} bytes of data")
    return np.frombuffer(data, kind.dtype).reshape(shape, order=order)


def _reconstruct(subtype: Any, shape: Any, code: Any) -> _Array:
    if subtype is not _Array:
        raise pickle.UnpicklingError("an array of another class than numpy.ndarray")
    return _Array()


def _frombuffer(data: Any, kind: Any, shape: Any, order: Any, axis_order: Any = None) -> _Array:
    if order not in ("C", "F") or axis_order is not None:
        raise pickle.UnpicklingError(f"an array in order {order!r}")
    made = _Array()
    made.array = _to_array(shape, kind, data, order)
    return made


def _reconstructor(kind: Any, base: Any, state: Any) -> Record:
    """Replaces `copyreg._reconstructor`, by which protocols before 2 create objects."""
    if kind is not Record or base not in ("object", "tuple"):
        raise pickle.UnpicklingError("an object of a class that is not needed to hold transitions")
    return Record(*state) if base == "tuple" else Record()


def _deque(items: Any = (), maxlen: Any = None) -> list[Any]:
    """Replaces `collections.deque`, whose entries follow; the list is not copied."""
    if isinstance(items, tuple) and not items:
        return []
    if not isinstance(items, list):
        raise pickle.UnpicklingError("a deque of something that is no list")
    return items


# By names in Python 3 and NumPy 2, to which those of earlier versions are converted.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("copyreg", "_reconstructor"): _reconstructor,
    ("builtins", "object"): "object",
    ("builtins", "tuple"): "tuple",
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("collections", "deque"): _deque,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): lambda kind, data: _to_array((), kind, data, "C")[()],
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
}
_RENAMED = {"copy_reg": "copyreg", "__builtin__": "builtins"}


class _BoundedFile:
    """A file that refuses reads beyond its end before memory is allocated."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.readline = file.readline

    def read(self, n: int) -> bytes:
        left = self.size - self._file.tell()
        if not 0 <= n <= left:
            raise pickle.UnpicklingError(f"{n} declared bytes where {left} are left")
        return self._file.read(n)


def _with_plain_keys(load: Callable[[Any], None], one: bool) -> Callable[[Any], None]:
    """Makes an opcode that fills a dictionary refuse unhashable or costly keys."""

    def checked(unpickler: Any) -> None:
        keys = unpickler.stack[-2:-1] if one else unpickler.stack[::2]
        if not all(isinstance(key, str | int) for key in keys):
            raise pickle.UnpicklingError("a dictionary whose keys are neither text nor numbers")
        load(unpickler)

    return checked


# Python's own implementation: in the one in C, a number in the file sets the size of a table.
class _Unpickler(pickle._Unpickler):
    """Creates placeholders only, in memory bounded by a multiple of the file's size."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: _BoundedFile) -> None:
        stream: Any = file
        super().__init__(stream)
        self._text_left = file.size

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how protocols before 3 write bytes
            return self._encode
        known = (_RENAMED.get(module, module).replace("numpy.core", "numpy._core"), name)
        if known in _ALLOWED:
            return _ALLOWED[known]
        foreign = module.partition(".")[0] not in sys.stdlib_module_names
        if foreign and name in _RECORDS:
            return Record
        raise pickle.UnpicklingError(f"{module}.{name}, which is not needed to hold transitions")

    def _encode(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"text in {encoding!r}")
        # Each text once is what the file holds; the same one again and again is a bomb.
        self._text_left -= len(text)
        if self._text_left < 0:
            raise pickle.UnpicklingError("more bytes from text than the file is long")
        return text.encode("latin1")

    # What the base class does here takes memory first, hashes what is in the file (nested tuples
    # take exponential time or overflow the stack) or writes into functions.

    def _load_bytearray8(self) -> None:
        (n,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        self.append(bytearray(self.read(n)))  # type: ignore[attr-defined]

    def _load_build(self) -> None:
        if not isinstance(self.stack[-2], Record | _Type | _Array):  # type: ignore[attr-defined]
            raise pickle.UnpicklingError("attributes of something that is no record")
        super().load_build()  # type: ignore[misc]

    def _load_set(self) -> NoReturn:
        raise pickle.UnpicklingError("a set")

    dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray8
    dispatch[pickle.BUILD[0]] = _load_build
    for _opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[_opcode[0]] = _load_set
    for _opcode in (pickle.SETITEM, pickle.SETITEMS, pickle.DICT):
        dispatch[_opcode[0]] = _with_plain_keys(dispatch[_opcode[0]], _opcode == pickle.SETITEM)


def load_restricted(path: Path) -> Any:
    """Reads a pickle of arrays, numbers, text, tuples, lists and dictionaries.

    Nothing named in the file is imported or called. Arrays become placeholders (use `plain` on
    each), objects of replay buffer classes `Record`s. A list may contain one array many times:
    check the size before copying.

    Raises:
        InvalidDatasetError: the content is something else, or damaged.
    """
    with path.open("rb") as file:
        try:
            return _Unpickler(_BoundedFile(file)).load()
        # Bytes that are no pickle end in errors of all kinds, but none of them executes.
        except Exception as error:
            content = str(error) if isinstance(error, pickle.UnpicklingError) else "damaged content"
            raise InvalidDatasetError(
                "Expected a pickle of transitions as NumPy arrays, numbers, tuples and lists, "
                f"found {content}. Nothing else is read, because it could execute code."
            ) from error


def without_placeholder(value: Any) -> Any:
    """Returns a placeholder's array; other values unchanged.

    Raises:
        InvalidDatasetError: an array without content.
    """
    if isinstance(value, _Array) and not hasattr(value, "array"):
        raise InvalidDatasetError("The file has an array without content.")
    return value.array if isinstance(value, _Array) else value
