"""Mini-batches with more information than d3rlpy's."""

from __future__ import annotations

import dataclasses
from typing import Protocol, cast

import torch
from d3rlpy.torch_utility import TorchMiniBatch


@dataclasses.dataclass(frozen=True)
class BatchInStates(TorchMiniBatch):
    """Transitions as networks see them, with the states as rules see them: unscaled."""

    states: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)  # (B, obs)
    next_states: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True)
class MiniBatch(BatchInStates):
    """Transitions with the rows of their observations in the dataset."""

    rows: torch.Tensor = dataclasses.field(kw_only=True)  # (B,)
    next_rows: torch.Tensor = dataclasses.field(kw_only=True)  # (B,)
    # Which choices may be made there, `(B, N, K)` bool; None if the dataset has no masks.
    masks: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)
    next_masks: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)
    # Several rewards of each transition, `(B, R)`; None if the dataset has one.
    named_rewards: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)
    # The policy's batch, if it differs from this one, the critics'.
    imitation: TorchMiniBatch | None = dataclasses.field(default=None, kw_only=True)


def imitation_batch(batch: TorchMiniBatch) -> TorchMiniBatch:
    """Returns the policy's batch."""
    return getattr(batch, "imitation", None) or batch


def masks_of(batch: TorchMiniBatch) -> torch.Tensor | None:
    """Returns which choices may be made in the batch's states, `(B, N, K)`; None: all."""
    return getattr(batch, "masks", None)


def next_masks_of(batch: TorchMiniBatch) -> torch.Tensor | None:
    """Returns the same for the next states."""
    return getattr(batch, "next_masks", None)


def states_of(batch: TorchMiniBatch) -> torch.Tensor:
    """Returns the batch's states as rules see them, `(B, obs)`."""
    states: torch.Tensor | None = getattr(batch, "states", None)
    return cast(torch.Tensor, batch.observations) if states is None else states


def next_states_of(batch: TorchMiniBatch) -> torch.Tensor:
    """Returns the same for the next states."""
    states: torch.Tensor | None = getattr(batch, "next_states", None)
    return cast(torch.Tensor, batch.next_observations) if states is None else states


def named_rewards_of(batch: TorchMiniBatch) -> torch.Tensor:
    """Returns the rewards `(B, R)` of a dataset with several.

    Raises:
        ValueError: the batch is of a dataset with one.
    """
    named: torch.Tensor | None = getattr(batch, "named_rewards", None)
    if named is None:
        raise ValueError(
            "Expected data with several rewards, by which the critics were built: from_table(..., "
            "rewards={...}) or load_dataset(..., rewards={...})."
        )
    return named


class BatchSource(Protocol):
    """Where a training draws batches from: a dataset on the device, or one with features."""

    @property
    def is_on_one_device(self) -> bool:
        """Whether all that a batch is made of is where the training is."""

    def sample_transition_batch(self, batch_size: int) -> MiniBatch:
        """Draws transitions with replacement."""

    def with_horizon(self, gamma: float | None) -> BatchSource:
        """Returns the same source with other returns, see `DeviceReplayBuffer.with_horizon`."""
