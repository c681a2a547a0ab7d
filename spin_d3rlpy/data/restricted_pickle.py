"""Reading pickles of NumPy arrays from strangers without running anything that is in them."""

from __future__ import annotations

import math
import os
import pickle
import re
import sys
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMBER = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
# Names of classes that published replay buffers consist of. Inert objects take their place.
_RECORDS = ("ReplayBuffer", "Buffer", "ReplayMemory", "Memory", "Transition", "Experience")


class Record:
    """Stands in for an instance of a class that is not imported.

    Attributes:
        arguments: what the class would have been called with.
        state: what would have become its attributes.
    """

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("an object whose state is no dictionary")
        self.state = state


class _Type:
    """Stands in for a `numpy.dtype` of a plain number."""

    __slots__ = ("dtype",)

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
    """Stands in for a `numpy.ndarray`; its content is read only if it has the size it claims."""

    __slots__ = ("array",)
    array: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.array = _to_array(shape, kind, data, "F" if fortran else "C")


def _to_array(shape: Any, kind: Any, data: Any, order: Any) -> NDArray[Any]:
    if isinstance(data, str):  # bytes in pickles of Python 2
        data = data.encode("latin1")
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


def _scalar(kind: Any, data: Any) -> Any:
    return _to_array((), kind, data, "C")[()]


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,  # how protocols before 3 write bytes
    ("collections", "deque"): deque,
    **{(module, "_reconstruct"): _reconstruct for module in _ARRAY_MODULES},
    **{(module, "scalar"): _scalar for module in _ARRAY_MODULES},
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
}


class _BoundedFile:
    """A file that refuses to read more than it has, before memory is taken for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.readline = file.readline

    def read(self, n: int) -> bytes:
        self._check(n)
        return self._file.read(n)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _check(self, n: int) -> None:
        left = self._size - self._file.tell()
        if not 0 <= n <= left:
            raise pickle.UnpicklingError(f"it claims {n} bytes more where {left} are left")


# Python's own implementation: in the one in C, a number in the file sets the size of a table.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        foreign = module.partition(".")[0] not in sys.stdlib_module_names
        if foreign and name in _RECORDS:
            return Record
        raise pickle.UnpicklingError(
            f"it wants {module}.{name}, which is not needed to hold transitions"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference to something outside the file")


def load_restricted(path: Path) -> Any:
    """Reads a pickle of arrays, numbers, text, tuples, lists and dictionaries.

    Nothing named in the file is imported or called: arrays are made here from their bytes, and
    objects of replay buffer classes become `Record`s. Arrays in the result are stand-ins; use
    `plain` on each.

    Raises:
        InvalidDatasetError: the file holds anything else, is damaged or ends early.
    """
    with path.open("rb") as file:
        bounded: Any = _BoundedFile(file)
        try:
            return _Unpickler(bounded).load()
        # Bytes that are no pickle end in errors of all kinds, but none of them executes.
        except Exception as error:
            found = str(error) if isinstance(error, pickle.UnpicklingError) else "damaged content"
            raise InvalidDatasetError(
                f"Cannot read {path}: {found}. Expected a pickle of transitions as NumPy arrays, "
                "numbers, tuples and lists; nothing else is read, because it could run code."
            ) from error


def plain(value: Any) -> Any:
    """Returns the array that a stand-in holds, and other values as they are.

    Raises:
        InvalidDatasetError: the file made an array and gave it no content.
    """
    if isinstance(value, _Array) and not hasattr(value, "array"):
        raise InvalidDatasetError("The file has an array without content.")
    return value.array if isinstance(value, _Array) else value
