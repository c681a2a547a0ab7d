"""`spin-d3rlpy info`: versions, devices and folders."""

from __future__ import annotations

import os

from spin_d3rlpy.cli.options import Json, emit
from spin_d3rlpy.cli.program import command, program


@command(program, "spin-d3rlpy info")
def info(json: Json = False) -> None:
    """Show versions, devices and folders; add this to bug reports."""
    import minari.storage
    import torch
    import yaml

    from spin_d3rlpy.runs.machine import describe_machine

    description = {
        **describe_machine(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "datasets": str(minari.storage.get_dataset_path("")),
        "remote": os.environ.get("MINARI_REMOTE"),
    }
    emit(json, description, yaml.safe_dump(description, sort_keys=False).rstrip())
