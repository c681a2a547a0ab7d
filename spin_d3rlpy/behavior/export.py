"""Writes a trained DecQN as the arrays that `spin_envs.behavior.BehaviorPolicy` runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from d3rlpy.models.encoders import SimBaEncoderFactory
from numpy.typing import NDArray

from spin_d3rlpy.algos.decqn import DecQN
from spin_d3rlpy.scalers import ClippedStandardObservationScaler


def policy_arrays(algo: DecQN) -> dict[str, NDArray[Any]]:
    """Returns the greedy policy of `algo` as named arrays, weights rounded to float16.

    Half precision halves the file; what a policy scores is measured after rounding.

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
    members = list(algo.impl.q_function)

    def stack(pick: Any, transpose: bool = False) -> NDArray[Any]:
        tensors = [pick(m).detach().cpu() for m in members]
        array: NDArray[Any] = torch.stack([t.T if transpose else t for t in tensors]).numpy()
        return array.astype(np.float16)

    arrays: dict[str, NDArray[Any]] = {
        "nvec": np.array(algo.config.nvec, dtype=np.int16),
        "mean": np.asarray(scaler.mean, dtype=np.float32),
        "std": np.asarray(scaler.std, dtype=np.float32) + np.float32(scaler.eps),
        "clip": np.array(scaler.clip, dtype=np.float32),
    }

    def add(name: str, pick: Any) -> None:
        arrays[f"{name}.weight"] = stack(lambda m: pick(m).weight, transpose="norm" not in name)
        arrays[f"{name}.bias"] = stack(lambda m: pick(m).bias)

    n_blocks = algo.config.encoder_factory.n_blocks
    add("input", lambda m: m.encoder._layers[0])
    for b in range(n_blocks):
        layers = ("norm", 0), ("up", 1), ("down", 3)
        for name, i in layers:
            add(f"block{b}.{name}", lambda m, b=b, i=i: m.encoder._layers[1 + b]._layers[i])
    add("norm", lambda m: m.encoder._layers[1 + n_blocks])
    add("head", lambda m: m.head)
    return arrays
