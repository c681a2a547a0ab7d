"""Mini-batches with more information than d3rlpy's."""

from __future__ import annotations

import dataclasses

import torch
from d3rlpy.torch_utility import TorchMiniBatch


@dataclasses.dataclass(frozen=True)
class MiniBatch(TorchMiniBatch):
    """Transitions with the rows of their observations in the dataset.

    Args:
        rows: `(B,)` rows of the observations in the buffer.
        next_rows: `(B,)` rows of the next observations.
        imitation: the policy's batch, if it differs from this one, the critics'.
    """

    rows: torch.Tensor = dataclasses.field(kw_only=True)
    next_rows: torch.Tensor = dataclasses.field(kw_only=True)
    imitation: TorchMiniBatch | None = dataclasses.field(default=None, kw_only=True)


def imitation_batch(batch: TorchMiniBatch) -> TorchMiniBatch:
    """Returns the policy's batch."""
    return getattr(batch, "imitation", None) or batch
