"""The errors this package raises for bad input, each saying what to do about it."""

from __future__ import annotations


class SpinError(Exception):
    """Base class of the errors that bad input to this package raises."""


class DatasetNotFoundError(SpinError, ValueError):
    """No dataset, task or level of this name."""


class InvalidDatasetError(SpinError, ValueError):
    """A dataset that MultiDiscrete offline RL cannot use: wrong actions, NaN, no transitions."""


class NvecMismatchError(SpinError, ValueError):
    """Two parts (dataset, ASM, algorithm, environment) disagree about the action space."""


class InvalidActionSpaceError(SpinError, ValueError):
    """An action space that is not MultiDiscrete and cannot be read as one."""


class NoAllowedChoiceError(SpinError, ValueError):
    """Rules for an action leave a sub-action without a choice."""


class InvalidObservationError(SpinError, ValueError):
    """Observations of the wrong shape, or with NaN or infinite entries."""


class InvalidCheckpointError(SpinError, ValueError):
    """A saved file that is damaged, of an unknown version or not what was asked for."""


class CheckpointWriteError(SpinError, OSError):
    """A checkpoint cannot be written: no space left, a read-only folder."""


class DatasetWriteError(SpinError, OSError):
    """A dataset cannot be written, for lack of space above all."""


class FolderInUseError(SpinError, RuntimeError):
    """Another run is writing to the folder."""


class DivergenceError(SpinError, ArithmeticError):
    """Losses or weights are no longer finite numbers."""


class RemoteError(SpinError, RuntimeError):
    """Where datasets are shared cannot be used: not set, no token, name taken, no network."""
