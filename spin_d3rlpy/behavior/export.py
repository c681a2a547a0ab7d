"""A DecQN's networks as the arrays that `spin_envs.behavior.BehaviorPolicy` runs, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from d3rlpy.models.encoders import SimBaEncoderFactory
from numpy.typing import NDArray
from torch import nn

from spin_d3rlpy.algos.decqn import DecQN
from spin_d3rlpy.scalers import ClippedStandardObservationScaler


def policy_arrays(algo: DecQN, averaged: bool = False) -> dict[str, NDArray[Any]]:
    """Returns the greedy policy of `algo` as named arrays, weights rounded to float16.

    Half precision halves the file; what a policy scores is measured after rounding.

    Args:
        algo: what was trained.
        averaged: whether its target networks are meant, averages of the last ones (Polyak).

    Raises:
        ValueError: `algo` is not built, or has another encoder or scaler than the recipes use.
    """
    scaler = algo.config.observation_scaler
    if (
        algo.impl is None
        or not isinstance(algo.config.encoder_factory, SimBaEncoderFactory)
        or not isinstance(scaler, ClippedStandardObservationScaler)
    ):
        raise ValueError(
            "Expected a built DecQN with SimBaEncoderFactory and "
            "ClippedStandardObservationScaler; use a config from spin_d3rlpy.behavior.recipes."
        )
    members = list(algo.impl.target_q_function if averaged else algo.impl.q_function)
    arrays: dict[str, NDArray[Any]] = {
        "nvec": np.array(algo.config.nvec, dtype=np.int16),
        "mean": np.asarray(scaler.mean, dtype=np.float32),
        "std": np.asarray(scaler.std, dtype=np.float32) + np.float32(scaler.eps),
        "clip": np.array(scaler.clip, dtype=np.float32),
    }
    layers = [_layers(member) for member in members]
    for name in layers[0]:
        for kind in ("weight", "bias"):
            tensors = [_oriented(getattr(each[name], kind)) for each in layers]
            arrays[f"{name}.{kind}"] = torch.stack(tensors).detach().cpu().half().numpy()
    return arrays


def load_policy_arrays(algo: DecQN, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Gives the networks of `algo`, online and target ones, the weights of a policy.

    The observation scaler stays as it is.

    Args:
        algo: built, with the encoder that `policy_arrays` expects.
        arrays: as `policy_arrays` gives them.

    Raises:
        ValueError: networks of another number or other sizes.
    """
    assert algo.impl is not None
    for members in (algo.impl.q_function, algo.impl.target_q_function):
        for i, member in enumerate(members):
            for name, layer in _layers(member).items():
                for kind in ("weight", "bias"):
                    source, mine = arrays[f"{name}.{kind}"], _oriented(getattr(layer, kind))
                    expected = (len(members), *mine.shape)
                    if source.shape != expected:
                        raise ValueError(
                            f"Expected {name}.{kind} of shape {expected}, as the networks have; "
                            f"got {source.shape}. Use as many of the same width."
                        )
                    with torch.no_grad():
                        mine.copy_(torch.from_numpy(source[i]))


def _oriented(parameter: torch.Tensor) -> torch.Tensor:
    """Matrices are kept as `(inputs, outputs)`; vectors are as they are."""
    return parameter.T if parameter.dim() == 2 else parameter


def _layers(member: Any) -> dict[str, nn.Module]:
    """Returns the layers of a Q function with a SimBa encoder by their names in a policy."""
    encoder = member.encoder._layers
    layers = {"input": encoder[0]}
    *blocks, norm = encoder[1:]
    for b, block in enumerate(blocks):
        inner = block._layers
        layers |= {
            f"block{b}.norm": inner[0],
            f"block{b}.up": inner[1],
            f"block{b}.down": inner[3],
        }
    return {**layers, "norm": norm, "head": member.head}
