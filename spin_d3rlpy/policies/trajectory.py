"""RePreM's features: its pre-trained state encoder, shared by all slots."""

from __future__ import annotations

import torch

from spin_d3rlpy.policies.features import SlotFeatures
from spin_d3rlpy.reprem import RePreM, RePreMConfig
from spin_d3rlpy.reprem.model import create_state_encoder


class TrajectoryFeatures(SlotFeatures):
    """A frozen state encoder."""

    def __init__(self, observation_size: int, config: RePreMConfig) -> None:
        super().__init__(1, config.width)
        self.state_encoder = create_state_encoder(observation_size, config)
        self.freeze(0)

    def load_reprem(self, model: RePreM) -> None:
        """Copies a pre-trained model's state encoder."""
        self.state_encoder.load_state_dict(model.state_encoder.state_dict())
        self.pretrained.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns features for all slots, `(B, 1, D)`."""
        features: torch.Tensor = self.state_encoder(observations)
        return features[:, None]
