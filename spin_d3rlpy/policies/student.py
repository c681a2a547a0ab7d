"""SPIN-Distill's features: an MLP trained on the frozen trunk's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spin_d3rlpy.asm.distillation import Student
from spin_d3rlpy.asm.model import ActionStructureModel, TransformerConfig
from spin_d3rlpy.policies.features import SlotFeatures
from spin_d3rlpy.policies.slot import require_same_sizes


class StudentFeatures(SlotFeatures):
    """A frozen student; `config` has the sizes of its teacher, an ASM."""

    def __init__(
        self,
        observation_size: int,
        n_slots: int,
        config: TransformerConfig,
        hidden_units: Sequence[int],
    ) -> None:
        super().__init__(n_slots, config.width)
        self.config = config
        self.student = Student(observation_size, n_slots, config.width, hidden_units)
        self.freeze(0)

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Checks that the student fits this teacher; distillation trains it later.

        Raises:
            NvecMismatchError: the ASM has other sizes.
        """
        require_same_sizes(self.config, asm)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`."""
        features: torch.Tensor = self.student(observations)
        return features
