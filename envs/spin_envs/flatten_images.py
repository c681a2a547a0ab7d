"""Environments whose observations have images in them, with one flat row as observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from spin_envs.observation_layout import ObservationLayout


class FlattenImages(
    gymnasium.ObservationWrapper[NDArray[np.float32], Any, Any], RecordConstructorArgs
):
    """Wrapper whose observations are rows of an `ObservationLayout`, `(obs,)` float32.

    Args:
        env: its observations have images in them, alone or in a `Dict` or `Tuple`.
        layout: of the rows, such as a dataset's; by default that of the environment's space.

    Attributes:
        layout: of the rows.

    Raises:
        ObservationShapeError: the environment's observations have other parts, or of other shapes.
        ValueError: there are no images.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        layout: ObservationLayout | Mapping[str, Any] | None = None,
    ) -> None:
        own = ObservationLayout.of_space(env.observation_space)
        if own is None:
            raise ValueError(
                f"Expected observations with images of uint8, got {env.observation_space}."
            )
        if isinstance(layout, Mapping):
            layout = ObservationLayout.from_dict(layout)
        layout = own if layout is None else own.in_order_of(layout)
        RecordConstructorArgs.__init__(self, layout=layout.to_dict())
        super().__init__(env)
        self.layout = layout
        self.observation_space = Box(-np.inf, np.inf, (layout.size,), np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """Returns an observation as a row `(obs,)`."""
        return self.layout.row(observation)
