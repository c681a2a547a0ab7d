"""Offline reinforcement learning for MultiDiscrete actions, as a plugin of d3rlpy.

Importing this package registers the environments. Its names, which `__init__.pyi` lists, and with
them torch and d3rlpy, are imported on first use.
"""

import importlib
import sys

import lazy_loader

import spin_envs  # noqa: F401  registers the environments
from spin_d3rlpy import _import_order, _quiet_import
from spin_d3rlpy._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _register_algorithms() -> None:
    """Imports the algorithms, so that `d3rlpy.load_learnable` knows their files.

    Skipped while a module of this package is still being imported.
    """
    light = {"spin_d3rlpy", *(f"spin_d3rlpy.{name}" for name in _LIGHT)}
    if not any(name.startswith("spin_d3rlpy") for name in sys.modules.keys() - light):
        importlib.import_module("spin_d3rlpy.algos")


_LIGHT = ("_version", "_import_order", "_quiet_import")  # what this module itself imports
_quiet_import.install(_import_order.import_triton_before_graphics, _register_algorithms)
