"""The machine and the package versions that a result comes from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

from spin_d3rlpy._compat import cpu_multiplies_bfloat16
from spin_d3rlpy._version import __version__
from spin_d3rlpy.fast.cpu import multiplies_faster_in_bfloat16


def describe_machine() -> dict[str, Any]:
    """Returns package versions, platform and processors."""
    packages = ("torch", "d3rlpy", "gymnasium", "minari", "mujoco", "dm_control", "numpy")
    return {
        "versions": {
            "spin-d3rlpy": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "bfloat16_units": cpu_multiplies_bfloat16(),
            "multiplies_faster_in_bfloat16": multiplies_faster_in_bfloat16(),
        },
    }
