"""Importer for ASM checkpoints in the layout of SPIN's published code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.serialization import safe_globals

from spin_d3rlpy.asm.model import ActionStructureModel, TransformerConfig
from spin_d3rlpy.errors import InvalidCheckpointError

# Their names of a block's layers (under core_transformer.transformer_blocks.{b}.mab), and ours.
_BLOCK = {
    "ln_q": "query_norm",
    "ln_kv": "context_norm",
    "fc_q": "attention.query",
    "out_proj": "attention.out",
    "ffn_ln": "ffn.0",
    "ffn.0": "ffn.1",
    "ffn.3": "ffn.4",
}
# What unpickles a NumPy integer: the published code saves `tuple(action_space.nvec)` with its
# arguments. The function has one module's name with NumPy 1, another with NumPy 2.
_SCALAR = np.int64(0).__reduce__()[0]
_NUMPY_INTEGERS: list[Any] = [
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["AllInteger"]},
]
_EMBEDDING = "core_transformer.sub_action_value_embeddings.{}.weight"


def load_published_asm(path: str | Path, n_heads: int | None = None) -> ActionStructureModel:
    """Reads a checkpoint of the published code; `save_asm` writes it in this package's format.

    The file holds the weights under `model_state_dict`. Sizes and `nvec` follow from their shapes,
    other values from `n_heads`, the file's `args`, or the published defaults. Nothing in
    the file is executed: only tensors, plain values and NumPy integers are accepted. The model is
    in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, its weights are not an ASM's, or its number of heads
            differs from `n_heads`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No checkpoint at {path}.")
    try:
        with safe_globals(_NUMPY_INTEGERS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file ends in is not foreseeable
        refused_global = re.search(
            r"GLOBAL \S+", str(error)
        )  # torch's text advises to trust the file
        raise InvalidCheckpointError(
            f"{path} is not a torch file that can be read without executing code "
            f"({refused_global[0] if refused_global else type(error).__name__})."
        ) from error
    try:
        weights = content["model_state_dict"]
        _check_weights(weights, path.stat().st_size)
        args = dict(content.get("args") or {})
        heads = int(args.get("num_heads", n_heads or 4))
        if n_heads not in (None, heads):
            raise ValueError(f"it was trained with {heads} heads, and n_heads={n_heads} was passed")
        asm = _empty_model(weights, heads, float(args.get("transformer_dropout_p", 0.1)))
        renamed, used = _rename(weights, asm)
        asm.load_state_dict(renamed, strict=True)
        if unused := sorted(weights.keys() - used):
            raise ValueError(f"an ASM does not have {', '.join(unused[:5])}")
    except Exception as error:  # nor is what is wrong with anyone's weights
        raise InvalidCheckpointError(
            f"The 'model_state_dict' in {path} is not that of a published ASM: {error!r}."
        ) from error
    return asm.eval()


def _check_weights(weights: Mapping[Any, Any], file_bytes: int) -> None:
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{name!r} is not the name of a tensor")
    # Strides may let a few bytes pass for any number of them.
    if sum(value.nbytes for value in weights.values()) > file_bytes:
        raise ValueError("it declares more bytes than the file has")
    for name, value in weights.items():
        if not value.is_floating_point() or not value.isfinite().all():
            raise ValueError(f"{name} ({value.dtype}) has entries that are not finite real numbers")


def _count_of(weights: dict[str, torch.Tensor], pattern: str) -> int:
    return len({m[1] for key in weights if (m := re.match(pattern, key))})


def _empty_model(
    weights: dict[str, torch.Tensor], n_heads: int, dropout: float
) -> ActionStructureModel:
    n_slots = _count_of(weights, r"core_transformer\.sub_action_value_embeddings\.(\d+)\.weight$")
    width = weights[_EMBEDDING.format(0)].shape[1]
    config = TransformerConfig(
        width=width,
        n_blocks=_count_of(weights, r"core_transformer\.transformer_blocks\.(\d+)\."),
        n_heads=n_heads,
        n_state_tokens=weights["core_transformer.state_encoder.2.weight"].shape[0] // width,
        ffn_multiplier=(
            weights["core_transformer.transformer_blocks.0.mab.ffn.0.weight"].shape[0] // width
        ),
        head_hidden=weights["prediction_heads.0.0.weight"].shape[0],
        dropout=dropout,
        attention_dropout=dropout,
    )
    # One row of each table is the mask token.
    nvec = [weights[_EMBEDDING.format(i)].shape[0] - 1 for i in range(n_slots)]
    observation_size = weights["core_transformer.state_encoder.0.weight"].shape[1]
    return ActionStructureModel(observation_size, nvec, config)


def _rename(
    weights: dict[str, torch.Tensor], asm: ActionStructureModel
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Returns the weights under this package's names, and the names read."""
    used: set[str] = set()

    def take(key: str, *shape: int) -> torch.Tensor:
        weight = weights[key]
        if shape and weight.shape != shape:  # where another would be broadcast or cut elsewhere
            raise ValueError(f"{key} has shape {tuple(weight.shape)}, expected {shape}")
        used.add(key)
        return weight

    sizes = asm.transformer.config
    width, hidden = sizes.width, sizes.head_hidden
    renamed: dict[str, torch.Tensor] = {}
    for kind in ("weight", "bias"):
        for layer in (0, 2):
            key = f"state_encoder.{layer}.{kind}"
            renamed[f"trunk.{key}"] = take(f"core_transformer.{key}")
        for b in range(sizes.n_blocks):
            old, new = f"core_transformer.transformer_blocks.{b}.mab", f"trunk.blocks.{b}"
            for their_layer, our_layer in _BLOCK.items():
                renamed[f"{new}.{our_layer}.{kind}"] = take(f"{old}.{their_layer}.{kind}")
            # Keys and values are one projection here.
            shape = (width, width) if kind == "weight" else (width,)
            renamed[f"{new}.attention.key_value.{kind}"] = torch.cat(
                [take(f"{old}.fc_{part}.{kind}", *shape) for part in "kv"]
            )
    slots = range(asm.slot_layout.n_slots)
    renamed["embedding.weight"] = torch.cat([take(_EMBEDDING.format(i)) for i in slots])
    # All slots' heads lie side by side here, padded to the largest number of choices.
    for name, layer in (("1", 0), ("2", 3)):
        weight = torch.zeros_like(asm.get_parameter(f"heads.weight{name}"))
        bias = torch.zeros_like(asm.get_parameter(f"heads.bias{name}"))
        for i in slots:
            outputs, inputs = (hidden, width) if name == "1" else (asm.nvec[i], hidden)
            head = f"prediction_heads.{i}.{layer}"
            weight[i, :, :outputs] = take(f"{head}.weight", outputs, inputs).T
            bias[i, 0, :outputs] = take(f"{head}.bias", outputs)
        renamed[f"heads.weight{name}"], renamed[f"heads.bias{name}"] = weight, bias
    return renamed, used
