"""Importer for ASM checkpoints in the layout of SPIN's published code."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import torch

from spin_d3rlpy.asm.model import ActionStructureModel, TransformerConfig
from spin_d3rlpy.errors import InvalidCheckpointError

# Their names of a block's layers (under core_transformer.transformer_blocks.{b}.mab) and ours.
_BLOCK = {
    "ln_q": "query_norm",
    "ln_kv": "context_norm",
    "fc_q": "attention.query",
    "out_proj": "attention.out",
    "ffn_ln": "ffn.0",
    "ffn.0": "ffn.1",
    "ffn.3": "ffn.4",
}
_EMBEDDING = "core_transformer.sub_action_value_embeddings.{}.weight"


def load_published_asm(
    path: str | Path, n_heads: int = 4, dropout: float = 0.1, attention_dropout: float = 0.1
) -> ActionStructureModel:
    """Reads a checkpoint of the published code; `save_asm` writes it in this package's format.

    Sizes and `nvec` follow from the shapes of the weights. What they do not tell is asked for,
    with the published values as defaults. No code in the file is executed.

    Args:
        path: a torch file with the weights under `model_state_dict`.
        n_heads: attention heads.
        dropout: of the blocks and heads.
        attention_dropout: on attention weights.

    Returns:
        The model in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, or its weights are not an ASM's.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No checkpoint at {path}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise InvalidCheckpointError(
            f"{path} is not a torch file that can be read without executing code ({error})."
        ) from error
    weights = content.get("model_state_dict") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise InvalidCheckpointError(
            f"Expected {path} to hold weights under 'model_state_dict', as the published code "
            "saves them."
        )
    try:
        asm = _empty_model(weights, n_heads, dropout, attention_dropout)
        renamed, used = _rename(weights, asm)
        asm.load_state_dict(renamed, strict=True)
    except (KeyError, ValueError, RuntimeError) as error:
        raise InvalidCheckpointError(
            f"The weights in {path} are not those of a published ASM: {error}."
        ) from error
    if unused := sorted(weights.keys() - used):
        raise InvalidCheckpointError(
            f"{path} holds weights that an ASM has no place for: {', '.join(unused[:5])}."
        )
    return asm.eval()


def _count(weights: dict[str, torch.Tensor], pattern: str) -> int:
    return len({m[1] for key in weights if (m := re.match(pattern, key))})


def _empty_model(
    weights: dict[str, torch.Tensor], n_heads: int, dropout: float, attention_dropout: float
) -> ActionStructureModel:
    n_slots = _count(weights, r"core_transformer\.sub_action_value_embeddings\.(\d+)\.weight$")
    width = weights[_EMBEDDING.format(0)].shape[1]
    config = TransformerConfig(
        width=width,
        n_blocks=_count(weights, r"core_transformer\.transformer_blocks\.(\d+)\."),
        n_heads=n_heads,
        n_state_tokens=weights["core_transformer.state_encoder.2.weight"].shape[0] // width,
        ffn_multiplier=(
            weights["core_transformer.transformer_blocks.0.mab.ffn.0.weight"].shape[0] // width
        ),
        head_hidden=weights["prediction_heads.0.0.weight"].shape[0],
        dropout=dropout,
        attention_dropout=attention_dropout,
    )
    # One row of each table is the mask token.
    nvec = [weights[_EMBEDDING.format(i)].shape[0] - 1 for i in range(n_slots)]
    observation_size = weights["core_transformer.state_encoder.0.weight"].shape[1]
    return ActionStructureModel(observation_size, nvec, config)


def _rename(
    weights: dict[str, torch.Tensor], asm: ActionStructureModel
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Returns the weights under this package's names, and the names that were read."""
    used: set[str] = set()

    def take(key: str) -> torch.Tensor:
        used.add(key)
        return weights[key]

    renamed: dict[str, torch.Tensor] = {}
    for kind in ("weight", "bias"):
        for layer in (0, 2):
            key = f"state_encoder.{layer}.{kind}"
            renamed[f"trunk.{key}"] = take(f"core_transformer.{key}")
        for b in range(asm.config.n_blocks):
            theirs, ours = f"core_transformer.transformer_blocks.{b}.mab", f"trunk.blocks.{b}"
            for their_layer, our_layer in _BLOCK.items():
                renamed[f"{ours}.{our_layer}.{kind}"] = take(f"{theirs}.{their_layer}.{kind}")
            # Keys and values are one projection here.
            renamed[f"{ours}.attention.key_value.{kind}"] = torch.cat(
                [take(f"{theirs}.fc_k.{kind}"), take(f"{theirs}.fc_v.{kind}")]
            )
    slots = range(asm.layout.n_slots)
    renamed["embedding.weight"] = torch.cat([take(_EMBEDDING.format(i)) for i in slots])
    # All slots' heads lie side by side here, padded to the largest number of choices.
    for name, layer in (("1", 0), ("2", 3)):
        weight = torch.zeros_like(asm.get_parameter(f"heads.weight{name}"))
        bias = torch.zeros_like(asm.get_parameter(f"heads.bias{name}"))
        for i in slots:
            w = take(f"prediction_heads.{i}.{layer}.weight")
            columns = asm.nvec[i] if name == "2" else len(w)
            weight[i, :, :columns] = w.T
            bias[i, 0, :columns] = take(f"prediction_heads.{i}.{layer}.bias")
        renamed[f"heads.weight{name}"], renamed[f"heads.bias{name}"] = weight, bias
    return renamed, used
