"""The policy of SPIN and SAINT: a Transformer over one learned query per slot.

SPIN freezes a trunk taken from a pre-trained ASM and trains queries and heads; SAINT trains all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from spin_d3rlpy.asm.model import (
    ActionStructureModel,
    SlotHeads,
    SlotTransformer,
    TransformerConfig,
)
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.policies.base import IndependentPolicy

QueryInit = Literal["random", "mask"]
HeadInit = Literal["random", "asm"]


class ActionQueries(nn.Module):
    """N learned tokens that stand where the ASM has sub-action embeddings."""

    def __init__(self, n_slots: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_slots, width))

    def forward(self) -> torch.Tensor:
        """Returns the tokens `(N, D)`."""
        return self.weight


class SlotFeatures(nn.Module):
    """Trunk and queries: maps observations `(B, obs)` to slot features `(B, N, D)`.

    Args:
        observation_size: length of an observation.
        n_slots: number of sub-actions (N).
        config: sizes of the trunk.
        frozen: SPIN: the trunk's parameters get no gradients.
        frozen_dropout: whether a frozen trunk's dropout stays active in training mode, as in
            the published code.
        train_queries: whether the queries are trained, or for how many gradient steps.
    """

    pretrained: torch.Tensor

    def __init__(
        self,
        observation_size: int,
        n_slots: int,
        config: TransformerConfig,
        frozen: bool,
        frozen_dropout: bool = True,
        train_queries: bool | int = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.frozen = frozen
        self.frozen_dropout = frozen_dropout
        self.train_queries = train_queries
        self.trunk = SlotTransformer(observation_size, config)
        self.queries = ActionQueries(n_slots, config.width)
        # Saved with the weights: a loaded SPIN policy must not be pre-trained again.
        self.register_buffer("pretrained", torch.tensor(False))
        self.freeze(0)

    def freeze(self, grad_step: int) -> None:
        """Withholds gradients from what is not trained in this step (d3rlpy's exports thaw all)."""
        self.trunk.requires_grad_(not self.frozen)
        trained = self.trains_queries(grad_step)
        self.queries.requires_grad_(trained)
        if not trained:
            self.queries.weight.grad = None  # with a zero gradient Adam's momentum goes on

    def trains_queries(self, grad_step: int) -> bool:
        """Whether the queries still change in this gradient step (counted from 0)."""
        trained = self.train_queries
        return trained if isinstance(trained, bool) else grad_step < trained

    def train(self, mode: bool = True) -> SlotFeatures:
        """Switches mode; a frozen trunk without dropout stays in evaluation mode."""
        super().train(mode)
        if self.frozen and not self.frozen_dropout:
            self.trunk.eval()
        return self

    def load_trunk(self, asm: ActionStructureModel, queries: QueryInit) -> None:
        """Copies the ASM's trunk, and its mask tokens as queries if so asked.

        Raises:
            NvecMismatchError: the ASM has other sizes.
        """
        if asm.config != self.config:
            raise NvecMismatchError(
                f"The policy's Transformer is {self.config}, the ASM's is {asm.config}. "
                "Build the policy with the ASM's sizes."
            )
        self.trunk.load_state_dict(asm.trunk.state_dict(), strict=True)
        if queries == "mask":
            with torch.no_grad():
                self.queries.weight.copy_(asm.mask_embeddings)
        self.pretrained.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`."""
        features: torch.Tensor = self.trunk(observations, self.queries())
        return features


class SlotPolicy(IndependentPolicy):
    """Slot features and one small head per slot.

    Args:
        observation_size: length of an observation.
        nvec: number of choices of each sub-action.
        config: sizes of trunk and heads.
        frozen: True for SPIN, False for SAINT.
        frozen_dropout: see `SlotFeatures`.
        train_queries: see `SlotFeatures`.
        query_init: `"random"` (N(0, 1), published) or `"mask"` (the ASM's mask tokens).
        head_init: `"random"` (published) or `"asm"` (the ASM's prediction heads).

    Raises:
        ValueError: an unknown initialization.
    """

    def __init__(
        self,
        observation_size: int,
        nvec: Sequence[int],
        config: TransformerConfig,
        frozen: bool,
        frozen_dropout: bool = True,
        train_queries: bool | int = True,
        query_init: QueryInit = "random",
        head_init: HeadInit = "random",
    ) -> None:
        super().__init__(SlotLayout(nvec))
        if query_init not in get_args(QueryInit) or head_init not in get_args(HeadInit):
            raise ValueError(
                "Expected query_init 'random' or 'mask' and head_init 'random' or 'asm', got "
                f"{query_init!r} and {head_init!r}."
            )
        self.query_init: QueryInit = query_init
        self.head_init: HeadInit = head_init
        self.features = SlotFeatures(
            observation_size, self.layout.n_slots, config, frozen, frozen_dropout, train_queries
        )
        self.heads = SlotHeads(nvec, config)

    @property
    def is_pretrained(self) -> bool:
        """Whether the trunk came from an ASM."""
        return bool(self.features.pretrained)

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Takes over the ASM's trunk (and what the initialization options name).

        Raises:
            NvecMismatchError: the ASM is of another action space or size.
        """
        require_same_nvec(self.layout.nvec, asm.nvec, "The policy", "the ASM")
        self.features.load_trunk(asm, self.query_init)
        if self.head_init == "asm":
            self.heads.load_state_dict(asm.heads.state_dict())

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Heads and, unless they are fixed, queries if the trunk is frozen, else everything."""
        if not self.features.frozen:
            return super().trainable_modules()
        heads: list[tuple[str, nn.Module]] = [("heads", self.heads)]
        if self.features.train_queries is False:
            return heads
        return [("queries", self.features.queries), *heads]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`, of observations `(B, obs)` or features `(B, N, D)`."""
        features = self.features(inputs) if inputs.dim() == 2 else inputs
        if not torch.is_autocast_enabled(inputs.device.type):
            features = features.to(self.heads.weight1.dtype)  # cached features are bfloat16
        logits: torch.Tensor = self.heads(features)
        return logits
