"""Transitions drawn by how wrong their values were (prioritized experience replay)."""

from __future__ import annotations

from typing import Any

import torch

from spin_d3rlpy.data.buffer.batches import BatchSource, MiniBatch
from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer

_LEAST = 1e-8  # priority, so that every transition is drawn at some time


class PrioritizedReplay(BatchSource):
    """Draws transitions in proportion to their last error, with replacement.

    This is the proportional variant with exponent 1 of Schaul et al. (2016), without importance
    weights. All errors are 1 at first. A draw takes time in proportion to the number of transitions
    (microseconds for ten thousand, milliseconds for a million).

    Args:
        buffer: the transitions.

    Attributes:
        priorities: `(rows,)`, of each observation's transition; 0 of the last ones of episodes,
            which have none.
    """

    def __init__(self, buffer: DeviceReplayBuffer) -> None:
        self._buffer = buffer
        starts, device = buffer.observation_index.long(), buffer.device
        n_rows = len(buffer.observations)
        self.priorities = torch.zeros(n_rows, device=device).index_fill_(0, starts, 1.0)
        self._transitions = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self._transitions[starts] = torch.arange(len(starts), device=device)

    @property
    def is_on_one_device(self) -> bool:
        return self._buffer.is_on_one_device

    def sample_transition_batch(self, batch_size: int) -> MiniBatch:
        """Draws transitions by their priorities, by torch's global random state."""
        shares = self.priorities.double().cumsum(0)
        u = torch.rand(batch_size, dtype=torch.float64, device=shares.device)
        rows = torch.searchsorted(shares, u * shares[-1], right=True)
        return self._buffer.transitions(self._transitions[rows.clamp(max=len(shares) - 1)])

    def with_horizon(self, gamma: float | None) -> BatchSource:
        """Returns this source: its transitions are single steps."""
        return self

    def update(self, rows: torch.Tensor, errors: torch.Tensor) -> None:
        """Sets the priorities of a batch's rows `(B,)` to absolute errors `(B,)`."""
        self.priorities.index_copy_(0, rows.long(), errors.to(self.priorities.dtype).abs() + _LEAST)

    def state_dict(self) -> dict[str, Any]:
        """Returns the priorities, for checkpoints."""
        return {"priorities": self.priorities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.priorities.copy_(state["priorities"])
