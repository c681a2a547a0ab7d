"""Features of states, the input of small policy heads: SPIN's, SAINT's, a student's, RePreM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from spin_d3rlpy.asm.distillation import Student
from spin_d3rlpy.asm.model import (
    ActionStructureModel,
    MLPConfig,
    StructureConfig,
    TransformerConfig,
    create_trunk,
)
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.reprem import RePreM, RePreMConfig, create_state_encoder

QueryInit = Literal["random", "mask"]


def require_same_sizes(config: StructureConfig, asm: ActionStructureModel) -> None:
    """Raises NvecMismatchError unless the ASM has the policy's sizes."""
    if asm.config != config:
        raise NvecMismatchError(
            f"The policy's trunk is {config}, the ASM's is {asm.config}. "
            "Build the policy with the ASM's sizes."
        )


class SlotFeatures(nn.Module):
    """Maps observations `(B, obs)` to slot features `(B, N, D)`, or `(B, 1, D)` for all slots.

    Subclasses with features fixed in stage 2 (`frozen`: without gradients) need only `forward`.
    """

    pretrained: torch.Tensor
    n_tokens = 1  # rows of its matrix products for one observation

    def __init__(self, n_slots: int, width: int, frozen: bool = True) -> None:
        super().__init__()
        self.shape = (n_slots, width)
        self.frozen = frozen
        # Saved with the weights: a loaded policy must not be pre-trained again.
        self.register_buffer("pretrained", torch.tensor(False))

    def freeze(self, grad_step: int) -> None:
        """Freezes the parameters that this step does not train (d3rlpy's exports unfreeze all)."""
        self.requires_grad_(not self.frozen)

    def trains_queries(self, grad_step: int) -> bool:
        """Whether features still change in this gradient step (counted from 0)."""
        return not self.frozen

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules that the actor's optimizer gets in addition to the heads."""
        return []

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the usable parts of an ASM; by default none."""


class QueryFeatures(SlotFeatures):
    """Trunk and queries: features of the state and N learned tokens.

    An MLP's queries are the ASM's mask tokens (weights of mask bits), so that its features are
    those of the fully masked action, shared by all slots. They are never trained. For the options
    see `SPINEncoderFactory`.

    Raises:
        ValueError: an unknown initialization.
    """

    def __init__(
        self,
        observation_size: int,
        n_slots: int,
        config: StructureConfig,
        frozen: bool,
        frozen_dropout: bool = True,
        train_queries: bool | int = True,
        query_init: QueryInit = "random",
    ) -> None:
        is_mlp = isinstance(config, MLPConfig)
        super().__init__(1 if is_mlp else n_slots, config.width, frozen)
        if query_init not in get_args(QueryInit):
            raise ValueError(f"Expected query_init 'random' or 'mask', got {query_init!r}.")
        self.config = config
        self.frozen_dropout = frozen_dropout
        self.train_queries = not is_mlp and train_queries
        self.query_init: QueryInit = "mask" if is_mlp else query_init
        self.n_tokens = 1 if is_mlp else n_slots + 1
        self.trunk = create_trunk(observation_size, config)
        self.queries = nn.Embedding(n_slots, config.width)
        self.freeze(0)
        self.train()

    def freeze(self, grad_step: int) -> None:
        self.trunk.requires_grad_(not self.frozen)
        trained = self.trains_queries(grad_step)
        self.queries.requires_grad_(trained)
        if not trained:
            self.queries.weight.grad = None  # with a zero gradient Adam's momentum would continue

    def trains_queries(self, grad_step: int) -> bool:
        trained = self.train_queries
        return trained if isinstance(trained, bool) else grad_step < trained

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        return [] if self.train_queries is False else [("queries", self.queries)]

    def train(self, mode: bool = True) -> QueryFeatures:
        """Switches mode; a frozen trunk without dropout stays in evaluation mode."""
        super().train(mode)
        if self.frozen and not self.frozen_dropout:
            self.trunk.eval()
        return self

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the ASM's trunk and, with `query_init="mask"`, its mask tokens."""
        require_same_sizes(self.config, asm)
        self.trunk.load_state_dict(asm.trunk.state_dict())
        if self.query_init == "mask":
            with torch.no_grad():
                self.queries.weight.copy_(asm.mask_embeddings)
        self.pretrained.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`, or `(B, 1, D)` of an MLP."""
        features: torch.Tensor = self.trunk(observations, self.queries.weight)
        return features


class StudentFeatures(SlotFeatures):
    """SPIN-Distill's: an MLP trained on a frozen trunk's; `config` has the sizes of its teacher."""

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
        """Checks that the student fits this teacher; distillation trains it later."""
        require_same_sizes(self.config, asm)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`."""
        features: torch.Tensor = self.student(observations)
        return features


class TrajectoryFeatures(SlotFeatures):
    """RePreM's pre-trained, frozen state encoder, shared by all slots."""

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
