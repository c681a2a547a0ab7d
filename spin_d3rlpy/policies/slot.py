"""Policies made of slot features and one small head per slot.

SPIN's and SAINT's features are a Transformer's over one learned query per slot. SPIN freezes a
trunk from a pre-trained ASM and trains queries and heads; SAINT trains all. With an MLP trunk,
SPIN's features are those of the fully masked action, shared by all slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from spin_d3rlpy.asm.mlp import MLPConfig
from spin_d3rlpy.asm.model import (
    ActionStructureModel,
    StructureConfig,
    create_heads,
    create_trunk,
)
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy
from spin_d3rlpy.policies.features import SlotFeatures

QueryInit = Literal["random", "mask"]
HeadInit = Literal["random", "asm"]


class ActionQueries(nn.Module):
    """N learned tokens in place of the ASM's sub-action embeddings."""

    def __init__(self, n_slots: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_slots, width))

    def forward(self) -> torch.Tensor:
        """Returns the tokens `(N, D)`."""
        return self.weight


class QueryFeatures(SlotFeatures):
    """Trunk and queries: features of the state and N learned tokens.

    An MLP's queries are the ASM's mask tokens (weights of mask bits) and are never trained.

    Args:
        observation_size: length of an observation.
        n_slots: number of sub-actions (N).
        config: sizes of the trunk; their type is its architecture.
        frozen: SPIN: the trunk's parameters get no gradients.
        frozen_dropout: keep a frozen trunk's dropout active in training (published).
        train_queries: whether the queries are trained, or for how many gradient steps.
        query_init: `"random"` (N(0, 1), published) or `"mask"` (the ASM's mask tokens).

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
        self.queries = ActionQueries(n_slots, config.width)
        self.freeze(0)

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
        """Copies the ASM's trunk and, with `query_init="mask"`, its mask tokens.

        Raises:
            NvecMismatchError: the ASM has other sizes.
        """
        require_same_sizes(self.config, asm)
        self.trunk.load_state_dict(asm.trunk.state_dict(), strict=True)
        if self.query_init == "mask":
            with torch.no_grad():
                self.queries.weight.copy_(asm.mask_embeddings)
        self.pretrained.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`, or `(B, 1, D)` of an MLP."""
        features: torch.Tensor = self.trunk(observations, self.queries())
        return features


def require_same_sizes(config: StructureConfig, asm: ActionStructureModel) -> None:
    """Raises NvecMismatchError unless the ASM has the policy's sizes."""
    if asm.config != config:
        raise NvecMismatchError(
            f"The policy's trunk is {config}, the ASM's is {asm.config}. "
            "Build the policy with the ASM's sizes."
        )


class SlotPolicy(IndependentPolicy):
    """Slot features and one small head per slot.

    Args:
        features: maps observations to slot features.
        config: sizes of the heads.
        head_init: `"random"` (published) or `"asm"` (the ASM's prediction heads).

    Raises:
        ValueError: an unknown initialization.
    """

    def __init__(
        self,
        nvec: Sequence[int],
        features: SlotFeatures,
        config: StructureConfig,
        head_init: HeadInit = "random",
    ) -> None:
        super().__init__(SlotLayout(nvec))
        if head_init not in get_args(HeadInit):
            raise ValueError(f"Expected head_init 'random' or 'asm', got {head_init!r}.")
        self.head_init: HeadInit = head_init
        self.features = features
        self.heads = create_heads(nvec, config)

    @property
    def n_tokens(self) -> int:
        return self.features.n_tokens

    @property
    def is_pretrained(self) -> bool:
        return bool(self.features.pretrained)

    def freeze(self, grad_step: int) -> None:
        self.features.freeze(grad_step)

    def frozen_features(self, grad_step: int) -> SlotFeatures | None:
        changes = not self.features.frozen or self.features.trains_queries(grad_step)
        return None if changes else self.features

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Copies the ASM's trunk (and queries and heads as initialized from it).

        Raises:
            NvecMismatchError: the ASM has another action space or size.
        """
        require_same_nvec(self.layout.nvec, asm.nvec, "The policy", "the ASM")
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
        if not torch.is_autocast_enabled(inputs.device.type):
            features = features.to(
                next(self.heads.parameters()).dtype
            )  # cached features are bfloat16
        logits: torch.Tensor = self.heads(features)
        return logits
