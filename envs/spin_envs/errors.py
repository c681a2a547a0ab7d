"""The errors that environments raise for bad input, each saying what to do about it."""

from __future__ import annotations


class InvalidActionError(ValueError):
    """An action that the environment's `MultiDiscrete` space does not contain."""


class UnknownTaskError(ValueError):
    """A domain or task that the suite does not have."""


class MissingDependencyError(ImportError):
    """A package that this environment needs is not installed or cannot be imported."""
