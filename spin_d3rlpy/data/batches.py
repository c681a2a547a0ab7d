"""Mini-batches that know more than d3rlpy's."""

from __future__ import annotations

import dataclasses

import torch
from d3rlpy.torch_utility import TorchMiniBatch


@dataclasses.dataclass(frozen=True)
class MiniBatch(TorchMiniBatch):
    """Transitions with the places of their observations in the dataset.

    Args:
        rows: `(B,)` rows of the observations in the buffer.
        next_rows: `(B,)` rows of the next observations.
        imitation: the batch that policies learn from, where it is drawn otherwise than this one,
            which critics learn from.
    """

    rows: torch.Tensor = dataclasses.field(kw_only=True)
    next_rows: torch.Tensor = dataclasses.field(kw_only=True)
    imitation: TorchMiniBatch | None = dataclasses.field(default=None, kw_only=True)


def imitation_batch(batch: TorchMiniBatch) -> TorchMiniBatch:
    """Returns the batch that policies learn from."""
    return getattr(batch, "imitation", None) or batch
