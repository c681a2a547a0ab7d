"""Errors for bad input; each message says what was expected, what came and what to do."""

from __future__ import annotations


class InvalidActionError(ValueError):
    """An action outside the environment's `MultiDiscrete` space."""


class UnknownTaskError(ValueError):
    """A domain or task that the suite does not have."""


class MissingDependencyError(ImportError):
    """A required package is not installed or cannot be imported."""
