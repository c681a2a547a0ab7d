"""`spin-d3rlpy info`: versions and devices for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import sys

from spin_d3rlpy import __version__
from spin_d3rlpy.cli.options import Json, emit
from spin_d3rlpy.cli.program import command, program

PACKAGES = ("d3rlpy", "torch", "gymnasium", "minari", "dm_control", "mujoco", "numpy")


@command(program, "spin-d3rlpy info")
def info(json: Json = False) -> None:
    """Show versions, devices and folders; add this to bug reports."""
    import minari.storage
    import torch

    python = sys.version.split()[0]
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = {
        "spin_d3rlpy": __version__,
        "python": python,
        "versions": versions,
        "cpu_cores": os.cpu_count(),
        "gpus": gpus,
        "datasets": str(minari.storage.get_dataset_path("")),
        "remote": os.environ.get("MINARI_REMOTE"),
    }
    lines = [
        f"spin-d3rlpy {__version__}, Python {python}",
        *(f"{name} {version}" for name, version in versions.items()),
        f"CPU cores: {os.cpu_count()}; GPUs: {', '.join(gpus) or 'none'}",
        f"Datasets in {found['datasets']}",
        f"Shared datasets (MINARI_REMOTE): {found['remote'] or 'not set'}",
    ]
    emit(json, found, "\n".join(lines))
