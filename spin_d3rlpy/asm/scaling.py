"""Observations scaled as in a model's pre-training, by d3rlpy's formulas in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spin_d3rlpy.histories import as_changes

Parameters = Mapping[str, Any]


def _standard(x: torch.Tensor, of: Parameters) -> torch.Tensor:
    mean, std = _row(of["mean"], x), _row(of["std"], x)
    return (x - mean) / (std + float(of["eps"]))


def _clipped(x: torch.Tensor, of: Parameters) -> torch.Tensor:
    if of.get("history", 1) > 1:  # files of before have none
        x = as_changes(x, of["history"], of["observation_size"])
    return _standard(x, of).clamp(-of["clip"], of["clip"])


def _min_max(x: torch.Tensor, of: Parameters) -> torch.Tensor:
    least, most = _row(of["minimum"], x), _row(of["maximum"], x)
    return (x - least) / (most - least) * 2.0 - 1.0


def _row(values: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32, device=x.device)[None]


_BY_TYPE: dict[str, Callable[[torch.Tensor, Parameters], torch.Tensor]] = {
    "none": lambda x, of: x,
    "standard": _standard,
    "spin_clipped_standard": _clipped,
    "min_max": _min_max,
}


def scaled(observations: torch.Tensor, scaler: Mapping[str, Any] | None) -> torch.Tensor:
    """Returns observations `(B, obs)` by a scaler's type and parameters, as a model keeps them.

    Raises:
        ValueError: the scaler is of a type that is not known here.
    """
    if scaler is None:
        return observations
    if scaler["type"] not in _BY_TYPE:
        raise ValueError(
            f"The model was pre-trained with observations scaled by {scaler['type']!r}, and knows "
            f"only {', '.join(_BY_TYPE)} by itself. Scale them (algo.network_input) and call the "
            "function of this name in spin_d3rlpy.asm.sampling, which takes scaled ones."
        )
    return _BY_TYPE[scaler["type"]](observations, scaler["params"])
