"""Errors for bad input; each message says what was expected, what came and what to do."""

from __future__ import annotations

from typing import Any, get_args

MOST = 200  # characters of a value in a message


class SpinError(Exception):
    """Base class of this package's errors for bad input."""


class DatasetNotFoundError(SpinError, ValueError):
    """No dataset, task or level of this name."""


class InvalidDatasetError(SpinError, ValueError):
    """A dataset unusable for MultiDiscrete offline RL: wrong actions, NaN, no transitions."""


class NvecMismatchError(SpinError, ValueError):
    """Two parts (dataset, ASM, algorithm, environment) disagree about the action space."""


class InvalidActionSpaceError(SpinError, ValueError):
    """An action space that is not MultiDiscrete and cannot be read as one."""


class NoTransformerError(SpinError, AttributeError, ValueError):
    """A model without attention between slots was asked for its Transformer."""


class NoAllowedChoiceError(SpinError, ValueError):
    """Rules for an action leave a sub-action without a choice."""


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


def no_transformer(config: Any) -> NoTransformerError:
    """Returns the error of a model of this config that has no attention between slots."""
    return NoTransformerError(
        f"Expected a model with attention between slots, got {config}. "
        "Pre-train one with a TransformerConfig."
    )


def shown(value: object) -> str:
    """Returns a value for a message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST else f"{text[:MOST]}..."


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
