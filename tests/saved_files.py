"""Reading and changing files of `save_policy` and `save_asm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open


def read_saved(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns the header and the weights."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["spin"])
    # Tensors of `safe_open` can be views of the file, which tests are going to overwrite.
    return header, safetensors.torch.load(path.read_bytes())


def write_saved(path: Path, header: Any, weights: dict[str, torch.Tensor]) -> None:
    """Overwrites the file."""
    safetensors.torch.save_file(weights, path, {"spin": json.dumps(header)})
