"""Interface between pre-training and its objectives."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import nn

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.fast.precision import Precision, autocast, backward, is_bfloat16

# Of the largest array of a part. Larger parts mean fewer calls, but memory of more than 32 MiB
# glibc gives back to the system each time, and touching new pages can take longer still.
BYTES_AT_ONCE = 24 * 2**20


class ObjectiveLoss(NamedTuple):
    """An update's scalar loss and accuracy (share of right predictions)."""

    loss: torch.Tensor
    accuracy: torch.Tensor


# Of held-out data: the score that early stopping maximizes, and metrics by name.
Validation: TypeAlias = tuple[float, Mapping[str, float]]


class PretrainingObjective(nn.Module):
    """A task on states and actions that trains the trunk of `asm` in place, without rewards.

    Its parameters are the ASM's and those of auxiliary networks, discarded after stage 1.

    Attributes:
        is_mean: whether a batch's loss is the mean of its parts' over rows, else it is their sum.
        has_parts: whether rows can be computed apart from each other.
    """

    is_mean = True
    has_parts = True

    def __init__(self, asm: ActionStructureModel) -> None:
        super().__init__()
        self.asm = asm

    @abstractmethod
    def loss_of_parts(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> Callable[[slice], ObjectiveLoss]:
        """Draws masks or noise for a batch `(B, obs)`, `(B, N)`; returns the loss of its parts."""

    def add_gradients(
        self, observations: torch.Tensor, actions: torch.Tensor, precision: Precision = "float32"
    ) -> ObjectiveLoss:
        """Adds the gradients of the loss to `grad`, part after part, so that memory is reused."""
        loss_of = self.loss_of_parts(observations, actions)
        n, device, results = len(actions), actions.device, []
        parts = parts_of_batch(self.asm, n, device, precision) if self.has_parts else [slice(n)]
        for part in parts:
            with autocast(device, precision):
                loss, accuracy = loss_of(part)
                if self.is_mean:
                    share = len(actions[part]) / n
                    loss, accuracy = share * loss, share * accuracy
                backward(loss)
            results.append(torch.stack([loss.detach(), accuracy]))
        return ObjectiveLoss(*torch.stack(results).sum(0))

    def mean_of_parts(self, n_rows: int, loss_of: Callable[[slice], ObjectiveLoss]) -> list[float]:
        """Returns loss and accuracy of held-out data, without gradients."""
        device = self.asm.mask_ids.device
        parts = [range(n_rows)[part] for part in parts_of_batch(self.asm, n_rows, device)]
        results = [len(rows) * torch.stack(loss_of(slice(rows.start, rows.stop))) for rows in parts]
        means: list[float] = (torch.stack(results).sum(0) / n_rows).tolist()
        return means

    @abstractmethod
    def validate(self, observations: torch.Tensor, actions: torch.Tensor) -> Validation:
        """Measures predictions of data `(B, obs)`, `(B, N)`, without gradients."""


def parts_of_batch(
    asm: ActionStructureModel, n_rows: int, device: torch.device, precision: Precision = "float32"
) -> Iterator[slice]:
    """Yields slices of equal parts of a batch on a CPU; a single slice on a GPU."""
    size = n_rows
    if device.type == "cpu":
        entries_a_row = asm.config.entries_a_row(asm.slot_layout.n_slots)
        entry_bytes = 2 if is_bfloat16(device, precision) else 4
        size = max(1, BYTES_AT_ONCE // (entries_a_row * entry_bytes))
    size = math.ceil(n_rows / math.ceil(n_rows / size))
    for start in range(0, n_rows, size):
        yield slice(start, start + size)
