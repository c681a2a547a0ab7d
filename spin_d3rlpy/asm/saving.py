"""ASM files: safetensors weights with a JSON configuration in the header. No pickles."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import safetensors.torch
import torch

from spin_d3rlpy.asm.model import ARCHITECTURES, ActionStructureModel
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.files.atomic import write_bytes
from spin_d3rlpy.files.untrusted import MAX_BYTES, open_untrusted
from spin_d3rlpy.images import RowSize

FORMAT = "spin-d3rlpy action structure model"
VERSION = 1


def save_asm(asm: ActionStructureModel, path: str | Path) -> None:
    """Atomically writes `asm` to `path`; raises FileWriteError where it cannot."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "observation_size": asm.observation_size,
        "nvec": asm.nvec,
        "architecture": next(k for k, v in ARCHITECTURES.items() if isinstance(asm.config, v)),
        "config": dataclasses.asdict(asm.config),
        "observation_scaler": asm.observation_scaler,
    }
    if isinstance(asm.observation_size, RowSize):
        header["images"] = asm.observation_size.to_dict()
    tensors = {k: v.detach().cpu().contiguous() for k, v in asm.state_dict().items()}
    write_bytes(path, safetensors.torch.save(tensors, {"spin": json.dumps(header)}))


def load_asm(
    path: str | Path, device: str = "cpu", max_bytes: int = MAX_BYTES
) -> ActionStructureModel:
    """Reads an ASM, in evaluation mode, from an untrusted file of at most `max_bytes`.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, too large, of another kind or version, or its weights
            are not finite or do not match its configuration.
    """
    advice = "Write one with save_asm, copy it again or pre-train again."
    with open_untrusted(Path(path), "ASM file", advice, max_bytes) as file:
        header = file.header(FORMAT, VERSION)
        size, pixels = header["observation_size"], 0
        if "images" in header:
            size = RowSize.from_dict(header["images"], size)
            pixels = size - size.n_numbers
        file.check_spaces(header["nvec"], [header["observation_size"]], 1, pixels)
        scaler = header["observation_scaler"]
        if scaler is not None and not isinstance(scaler, dict):
            raise InvalidCheckpointError("its observation scaler is invalid")
        sizes = ARCHITECTURES[header["architecture"]]

        def build() -> ActionStructureModel:
            return ActionStructureModel(size, header["nvec"], sizes(**header["config"]))

        with file.no_more_parameters():
            with torch.device("meta"):  # shapes without memory
                file.check_weights(build().state_dict())
            asm = build()
        file.read_into(asm.state_dict())
    asm.observation_scaler = scaler
    asm.to(torch.device(device))
    return asm.eval()
