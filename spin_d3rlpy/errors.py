"""Errors for bad input; each message says what was expected, what came and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, get_args

_MOST_CHARACTERS = 80  # of a value in a message
_MOST_VALUES = 20


class SpinError(Exception):
    """Base class of this package's errors for bad input."""


class DatasetNotFoundError(SpinError, ValueError):
    """No dataset, task or level of this name."""


class InvalidDatasetError(SpinError, ValueError):
    """A dataset unusable for MultiDiscrete offline RL: wrong actions, NaN, no transitions."""


class InvalidRowError(InvalidDatasetError):
    """A row of a table is at fault, which the message calls "row <number>".

    Args:
        message: of the error.
        row: number of the row in the table, from 0.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row

    def in_part(self, file: str, row: int) -> InvalidDatasetError:
        """Returns the same error of a row of one of the table's files."""
        text = re.sub(rf"\b([Rr])ow {self.row}\b", rf"\g<1>ow {row}", str(self), count=1)
        return InvalidDatasetError(f"In {file}: {text}")


class NvecMismatchError(SpinError, ValueError):
    """Two parts (dataset, ASM, algorithm, environment) disagree about the action space."""


class InvalidActionSpaceError(SpinError, ValueError):
    """An action space that is not MultiDiscrete and cannot be read as one."""


class NoTransformerError(SpinError, AttributeError, ValueError):
    """A model without attention between slots was asked for its Transformer."""


class NoAllowedChoiceError(SpinError, ValueError):
    """Rules for an action leave a slot without a choice."""


class InvalidObservationError(SpinError, ValueError):
    """Observations of the wrong shape, or with NaN or infinite entries."""


class InvalidCheckpointError(SpinError, ValueError):
    """A saved file that is damaged, of an unknown version or of the wrong kind."""


class UntrustedRuleError(InvalidCheckpointError):
    """A file names a function as a rule, and was opened without trust."""


class FileWriteError(SpinError, OSError):
    """A file cannot be written: no space left, a read-only folder."""


class CheckpointWriteError(FileWriteError):
    """A checkpoint cannot be written; earlier ones remain."""


class DatasetWriteError(FileWriteError):
    """A dataset cannot be written, usually for lack of space."""


class FolderInUseError(SpinError, RuntimeError):
    """Another run is writing to the folder."""


class NotConvergedError(SpinError, RuntimeError):
    """An estimate that does not reproduce what is known, so that it is not to be believed."""


class DivergenceError(SpinError, ArithmeticError):
    """Losses or weights are no longer finite numbers."""


class RemoteError(SpinError, RuntimeError):
    """Shared storage is unusable: not set, no token, name taken, no network."""


def shown(value: object) -> str:
    """Returns a value as a message shows it, cut if it is long."""
    if isinstance(value, str | bytes):
        cut = repr(value[:_MOST_CHARACTERS])
        return cut if len(value) <= _MOST_CHARACTERS else f"{cut}... ({len(value):,} long)"
    if isinstance(value, int) and value.bit_length() > 4 * _MOST_CHARACTERS:
        return f"a whole number of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits, also in a list
        return f"a {type(value).__name__} with a number of thousands of digits"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def listed(values: Iterable[object]) -> str:
    """Returns values as a message lists them, no more than the first 20."""
    first = list(islice(values, _MOST_VALUES + 1))
    texts = [v if isinstance(v, str) and len(v) <= _MOST_CHARACTERS else shown(v) for v in first]
    if not texts:
        return "none"
    return ", ".join([*texts[:_MOST_VALUES], *["..."][: len(texts) > _MOST_VALUES]])


def no_transformer(config: Any) -> NoTransformerError:
    """Returns the error of a model of this config that has no attention between slots."""
    return NoTransformerError(
        f"Expected a model with attention between slots, got {config}. "
        "Pre-train one with a TransformerConfig."
    )


def require_fields(config: object, **rules: tuple[bool, str]) -> None:
    """Raises ValueError for the first field of a config whose rule `(holds, expected)` does not."""
    for name, (holds, expected) in rules.items():
        if not holds:
            raise ValueError(f"Expected {name} {expected}, got {shown(getattr(config, name))}.")


def require_one_of(name: str, value: object, kind: Any) -> None:
    """Raises ValueError unless a value is one of a `Literal`'s."""
    if value not in get_args(kind):
        expected = " or ".join(map(repr, get_args(kind)))
        raise ValueError(f"Expected {name} {expected}, got {shown(value)}.")
