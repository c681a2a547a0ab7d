"""The version, read by the build and by everything that records provenance."""

__version__ = "0.1.0"
