"""A linear critic of one step, the least that a log can be learned from: a baseline of CoNE."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.nvec import SlotLayout

Array = NDArray[Any]


class LinearCritic:
    """Least squares of the immediate reward on one-hot observations and one-hot choices.

    Observations are whole numbers, as CoNE's positions are. Nothing is bootstrapped and no term is
    of state and action, so the greedy action is the same everywhere: each slot's choice with the
    largest coefficient.

    Args:
        buffer: the log.
    """

    def __init__(self, buffer: DeviceReplayBuffer) -> None:
        observations = buffer.observations[buffer.observation_index.long()].long()
        layout = SlotLayout(buffer.nvec)
        states = np.eye(int(observations.max()) + 1)[observations.numpy()].reshape(
            len(observations), -1
        )
        choices = np.zeros((len(states), layout.total))
        np.put_along_axis(choices, layout.positions(buffer.actions).numpy(), 1.0, axis=1)
        inputs = np.concatenate([states, choices], axis=1)
        coefficients = np.linalg.lstsq(inputs, buffer.rewards.double().numpy(), rcond=None)[0]
        self.action: Array = np.array(
            [
                part.argmax()
                for part in np.split(coefficients[states.shape[1] :], layout.offsets[1:])
            ]
        )

    def predict(self, x: Array) -> Array:
        """Returns the greedy action of every observation `(B, obs)`, `(B, N)`."""
        return np.tile(self.action, (len(x), 1))

    sample_action = predict
