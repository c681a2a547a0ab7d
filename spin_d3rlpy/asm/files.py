"""ASM files: safetensors weights with the configuration as JSON in their header. No pickles."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from spin_d3rlpy.asm.model import ActionStructureModel, TransformerConfig
from spin_d3rlpy.atomic import written_whole
from spin_d3rlpy.errors import InvalidCheckpointError

FORMAT = "spin-d3rlpy action structure model"
VERSION = 1


def save_asm(asm: ActionStructureModel, path: str | Path) -> None:
    """Writes `asm` to `path` in one step, so that a reader never sees half a file."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "observation_size": asm.observation_size,
        "nvec": asm.nvec,
        "config": dataclasses.asdict(asm.config),
        "observation_scaler": asm.observation_scaler,
    }
    tensors = {k: v.detach().cpu().contiguous() for k, v in asm.state_dict().items()}
    with written_whole(Path(path)) as partial:
        safetensors.torch.save_file(tensors, partial, {"spin": json.dumps(header)})


def load_asm(path: str | Path, device: str = "cpu") -> ActionStructureModel:
    """Reads an ASM, in evaluation mode.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, of another kind or version, or its weights do not
            fit its configuration.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No ASM file at {path}. Write one with asm.save or save_asm.")
    try:
        with safetensors.safe_open(path, framework="pt") as f:
            header = _read_header(path, f.metadata())
            asm = ActionStructureModel(
                header["observation_size"], header["nvec"], TransformerConfig(**header["config"])
            )
            expected = {k: tuple(v.shape) for k, v in asm.state_dict().items()}
            found = {k: tuple(f.get_slice(k).get_shape()) for k in f.keys()}  # noqa: SIM118
            if expected != found:
                raise InvalidCheckpointError(
                    f"{path} does not hold the weights its configuration asks for. "
                    "Pre-train again, or use the file as it was written."
                )
            weights = {k: f.get_tensor(k) for k in expected}
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidCheckpointError):
            raise
        raise InvalidCheckpointError(
            f"{path} is not a readable ASM file ({error}). Copy it again or pre-train again."
        ) from error
    asm.load_state_dict(weights)
    asm.observation_scaler = header["observation_scaler"]
    asm.to(torch.device(device))
    return asm.eval()


def _read_header(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((metadata or {}).get("spin", "{}"))
    if header.get("format") != FORMAT:
        raise InvalidCheckpointError(
            f"{path} is a safetensors file, but not an action structure model of spin-d3rlpy."
        )
    if header.get("version") != VERSION:
        raise InvalidCheckpointError(
            f"{path} has format version {header.get('version')}, this spin-d3rlpy reads "
            f"{VERSION}. Use the spin-d3rlpy that wrote it, or pre-train again."
        )
    return header
