"""Networks as the arrays that `spin_envs.behavior.BehaviorPolicy` runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from d3rlpy.models.torch.encoders import SimBaEncoder
from numpy.typing import NDArray
from torch import nn

from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler

Member = tuple[Any, Any]  # a SimBa encoder and the linear head of all slots


def policy_arrays(
    members: Sequence[Member], nvec: Sequence[int], scaler: ClippedStandardObservationScaler
) -> dict[str, NDArray[Any]]:
    """Returns an ensemble's greedy policy as named arrays, weights rounded to float16.

    Scores are measured after rounding, which halves the file.

    Args:
        members: the ensemble's encoders, each with the head of its utilities (or logits).
        nvec: number of choices of each slot.
        scaler: of observations.

    Raises:
        ValueError: an encoder is no SimBa encoder.
    """
    arrays: dict[str, NDArray[Any]] = {
        "nvec": np.array(nvec, dtype=np.int16),
        "mean": np.asarray(scaler.mean, dtype=np.float32),
        "std": np.asarray(scaler.std, dtype=np.float32) + np.float32(scaler.eps),
        "clip": np.array(scaler.clip, dtype=np.float32),
    }
    layers = [_layers(*member) for member in members]
    for name in layers[0]:
        for kind in ("weight", "bias"):
            tensors = [_oriented(getattr(each[name], kind)) for each in layers]
            arrays[f"{name}.{kind}"] = torch.stack(tensors).detach().cpu().half().numpy()
    return arrays


def _oriented(parameter: torch.Tensor) -> torch.Tensor:
    """Transposes matrices to `(inputs, outputs)`; vectors are unchanged."""
    return parameter.T if parameter.dim() == 2 else parameter


def _layers(encoder: Any, head: Any) -> dict[str, nn.Module]:
    """Returns the layers of a network by their names in a policy."""
    if not isinstance(encoder, SimBaEncoder):
        raise ValueError(
            f"Expected networks with d3rlpy's SimBaEncoder, got {type(encoder).__name__}; use the "
            "encoder of a recipe in examples.behavior_policies.recipes."
        )
    first, *blocks, norm = list[Any](encoder._layers)
    layers = {"input": first}
    for b, block in enumerate(blocks):
        inner = block._layers
        layers |= {
            f"block{b}.norm": inner[0],
            f"block{b}.up": inner[1],
            f"block{b}.down": inner[3],
        }
    return {**layers, "norm": norm, "head": head}
