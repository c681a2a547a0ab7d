"""Interface between pre-training and its objectives."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.precision import Precision, is_bfloat16

# Of the largest array of a part. Larger parts mean fewer calls, but memory of more than 32 MiB
# glibc gives back to the system each time, and touching new pages can take longer still.
BYTES_AT_ONCE = 24 * 2**20


class ObjectiveLoss(NamedTuple):
    """An update's scalar loss and accuracy (share of right predictions)."""

    loss: torch.Tensor
    accuracy: torch.Tensor


class Validation(NamedTuple):
    """Prediction of held-out data: metrics by name, and the score that early stopping maximizes."""

    score: float
    metrics: Mapping[str, float]


class PretrainingObjective(nn.Module):
    """A task on states and actions that trains the trunk of `asm` in place, without rewards.

    Its parameters are the ASM's and those of auxiliary networks, discarded after stage 1.
    """

    def __init__(self, asm: ActionStructureModel) -> None:
        super().__init__()
        self.asm = asm

    @abstractmethod
    def add_gradients(
        self, observations: torch.Tensor, actions: torch.Tensor, precision: Precision = "float32"
    ) -> ObjectiveLoss:
        """Computes the loss and adds its gradients to the parameters' `grad`.

        Args:
            observations: `(B, obs)`.
            actions: `(B, N)` choices.
            precision: number format, see `spin_d3rlpy.precision.autocast`.
        """

    @abstractmethod
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Measures predictions of data `(B, obs)`, `(B, N)`, without gradients."""


def parts_of_batch(
    asm: ActionStructureModel,
    n_rows: int,
    device: torch.device,
    precision: Precision = "float32",
) -> Iterator[slice]:
    """Yields slices of equal parts of a batch on a CPU; a single slice on a GPU."""
    size = n_rows
    if device.type == "cpu":
        entries_a_row = asm.config.entries_a_row(asm.layout.n_slots)
        entry_bytes = 2 if is_bfloat16(device, precision) else 4
        size = max(1, BYTES_AT_ONCE // (entries_a_row * entry_bytes))
    size = math.ceil(n_rows / math.ceil(n_rows / size))
    for start in range(0, n_rows, size):
        yield slice(start, start + size)
