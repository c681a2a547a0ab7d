"""Policies of slot features (SPIN's, SAINT's, a student's, RePreM's) and one head per slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from spin_d3rlpy.asm.distillation import Student
from spin_d3rlpy.asm.model import (
    ActionStructureModel,
    MLPConfig,
    StructureConfig,
    TransformerConfig,
    create_heads,
    create_trunk,
)
from spin_d3rlpy.errors import NvecMismatchError, require_one_of
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy, SlotFeatures
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMModel, create_state_encoder

QueryInit = Literal["random", "mask"]
HeadInit = Literal["random", "asm"]


def require_same_sizes(config: StructureConfig, asm: ActionStructureModel) -> None:
    """Raises NvecMismatchError unless the ASM has the policy's sizes."""
    if asm.config != config:
        raise NvecMismatchError(
            f"The policy's trunk is {config}, the ASM's is {asm.config}. "
            "Build the policy with the ASM's sizes."
        )


class QueryFeatures(SlotFeatures):
    """Trunk and queries: features of the state and N learned tokens.

    An MLP's queries are the ASM's mask tokens (weights of mask bits), so that its features are
    those of the fully masked action, shared by all slots. They are never trained. For the options
    see `SPIN`.
    """

    def __init__(
        self,
        observation_size: int,
        n_slots: int,
        config: StructureConfig,
        frozen: bool,
        frozen_dropout: bool = True,
        train_queries: bool = True,
        query_init: QueryInit = "random",
    ) -> None:
        is_mlp = isinstance(config, MLPConfig)
        super().__init__(1 if is_mlp else n_slots, config.width, frozen)
        require_one_of("query_init", query_init, QueryInit)
        self.config = config
        self.frozen_dropout = frozen_dropout
        self.train_queries = not is_mlp and train_queries
        self.query_init: QueryInit = "mask" if is_mlp else query_init
        self.n_tokens = 1 if is_mlp else n_slots + 1
        self.trunk = create_trunk(observation_size, config)
        self.queries = nn.Embedding(n_slots, config.width)
        self.freeze()
        self.train()

    @property
    def is_fixed(self) -> bool:
        return self.frozen and not self.train_queries

    def freeze(self) -> None:
        self.trunk.requires_grad_(not self.frozen)
        self.queries.requires_grad_(self.train_queries)

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        return [("queries", self.queries)] if self.train_queries else []

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
        self.freeze()

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
        self.freeze()

    def load_reprem(self, model: RePreMModel) -> None:
        """Copies a pre-trained model's state encoder."""
        self.state_encoder.load_state_dict(model.state_encoder.state_dict())
        self.pretrained.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns features for all slots, `(B, 1, D)`."""
        features: torch.Tensor = self.state_encoder(observations)
        return features[:, None]


class SlotPolicy(IndependentPolicy):
    """Slot features and one small head per slot, at first random (published) or the ASM's."""

    def __init__(
        self,
        nvec: Sequence[int],
        features: SlotFeatures,
        config: StructureConfig,
        head_init: HeadInit = "random",
    ) -> None:
        super().__init__(SlotLayout(nvec))
        require_one_of("head_init", head_init, HeadInit)
        self.head_init: HeadInit = head_init
        self.features = features
        self.heads = create_heads(nvec, config)

    @property
    def n_tokens(self) -> int:
        return self.features.n_tokens

    @property
    def is_pretrained(self) -> bool:
        return bool(self.features.pretrained)

    def freeze(self) -> None:
        self.features.freeze()

    @property
    def fixed_features(self) -> SlotFeatures | None:
        return self.features if self.features.is_fixed else None

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the ASM's trunk (and queries and heads as initialized from it)."""
        require_same_nvec(self.slot_layout.nvec, asm.nvec, "The policy", "the ASM")
        self.features.load_asm(asm)
        if self.head_init == "asm":
            self.heads.load_state_dict(asm.heads.state_dict())

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        if not self.features.frozen:
            return super().trainable_modules()
        return [*self.features.trainable_modules(), ("heads", self.heads)]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`, of observations `(B, obs)` or features `(B, N, D)`."""
        features = self.features(inputs) if inputs.dim() == 2 else inputs
        if not torch.is_autocast_enabled(inputs.device.type):  # cached features are bfloat16
            features = features.to(next(self.heads.parameters()).dtype)
        logits: torch.Tensor = self.heads(features)
        return logits
