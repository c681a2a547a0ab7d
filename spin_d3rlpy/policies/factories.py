"""d3rlpy encoder factories: what stands in `actor_encoder_factory` decides the policy.

`SPINEncoderFactory` and `SAINTEncoderFactory` give the slot policies,
`AutoregressiveEncoderFactory` the autoregressive one, any other d3rlpy factory the factored one.
All are serialized with the algorithm. Inside stock d3rlpy algorithms the first two give an
encoder with flat features `(B, N * D)`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, register_encoder_factory
from d3rlpy.models.torch.encoders import Encoder
from d3rlpy.types import Shape, TorchObservation

from spin_d3rlpy.asm.files import load_asm
from spin_d3rlpy.asm.model import TransformerConfig
from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from spin_d3rlpy.policies.base import Policy
from spin_d3rlpy.policies.factored import FactoredPolicy
from spin_d3rlpy.policies.slot import HeadInit, QueryInit, SlotFeatures, SlotPolicy


class SlotEncoder(Encoder):
    """Slot features as one flat vector, for algorithms that know nothing of slots."""

    def __init__(self, features: SlotFeatures) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: TorchObservation) -> torch.Tensor:
        """Maps observations `(B, obs)` to `(B, N * D)`."""
        assert isinstance(x, torch.Tensor)
        features: torch.Tensor = self.features(x)
        return features.flatten(1)


@dataclasses.dataclass()
class SAINTEncoderFactory(EncoderFactory):
    """Transformer over slot queries, trained end to end (SAINT, as in the SPIN paper).

    Args:
        transformer: sizes.
        nvec: number of choices of each sub-action; algorithms of this package fill it in, stock
            d3rlpy algorithms need it given.
    """

    transformer: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    nvec: list[int] | None = None

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network."""
        return SlotPolicy(observation_size, nvec, self.transformer, frozen=False)

    def create(self, observation_shape: Shape) -> SlotEncoder:
        """Returns an encoder with flat features for stock d3rlpy algorithms.

        Raises:
            InvalidActionSpaceError: `nvec` is not set.
        """
        if self.nvec is None:
            raise InvalidActionSpaceError(
                f"{type(self).__name__} outside this package's algorithms needs nvec=[...], "
                "the number of choices of each sub-action."
            )
        policy = self.create_policy(cast_flat_shape(observation_shape)[0], self.nvec)
        return SlotEncoder(policy.features)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "saint"


@dataclasses.dataclass()
class SPINEncoderFactory(SAINTEncoderFactory):
    """The same Transformer with its trunk frozen after pre-training (SPIN, section 4.2).

    Args:
        transformer: sizes.
        nvec: number of choices of each sub-action.
        frozen_dropout: dropout inside the frozen trunk stays active in training (published).
        train_queries: True (published), False for fixed queries, or the number of gradient steps
            after which they stay as they are.
        query_init: `"random"` (published) or `"mask"`.
        head_init: `"random"` (published) or `"asm"`.
        asm_path: file written by `save_asm`; its trunk is loaded whenever the network is built.
            None, or a file that is gone (as when a saved policy is loaded elsewhere, whose
            weights follow): the trunk starts untrained, and `SPIN...` algorithms pre-train it in
            `fit` unless weights are loaded first.
    """

    frozen_dropout: bool = True
    train_queries: bool | int = True
    query_init: QueryInit = "random"
    head_init: HeadInit = "random"
    asm_path: str | None = None

    def create_policy(self, observation_size: int, nvec: Sequence[int]) -> SlotPolicy:
        """Returns the policy network, with the trunk of `asm_path` if that is given."""
        if self.nvec is not None:
            require_same_nvec(self.nvec, nvec, "The encoder factory", "the algorithm")
        policy = SlotPolicy(
            observation_size,
            nvec,
            self.transformer,
            frozen=True,
            frozen_dropout=self.frozen_dropout,
            train_queries=self.train_queries,
            query_init=self.query_init,
            head_init=self.head_init,
        )
        if self.asm_path is not None:
            if Path(self.asm_path).exists():
                policy.load_asm(load_asm(self.asm_path))
            else:
                warnings.warn(
                    f"There is no ASM at {self.asm_path}: the trunk is untrained until weights "
                    "are loaded or fit pre-trains it.",
                    stacklevel=2,
                )
        return policy

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin"


@dataclasses.dataclass()
class AutoregressiveEncoderFactory(EncoderFactory):
    """LSTM over slots, each choosing in view of those before it (AR-).

    Args:
        sizes: of the networks.
    """

    sizes: AutoregressiveConfig = dataclasses.field(default_factory=AutoregressiveConfig)

    def create(self, observation_shape: Shape) -> NoReturn:
        """Raises InvalidActionSpaceError: it needs the slots before, which others do not have."""
        raise InvalidActionSpaceError(
            "AutoregressiveEncoderFactory decides the policy of this package's algorithms "
            "(actor_encoder_factory); it encodes no observations by themselves. Use another "
            "encoder factory here."
        )

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "autoregressive"


def create_policy(
    factory: EncoderFactory, observation_shape: Sequence[int], nvec: Sequence[int]
) -> Policy:
    """Returns the policy that an actor encoder factory stands for."""
    if isinstance(factory, SAINTEncoderFactory):
        return factory.create_policy(observation_shape[0], nvec)
    if isinstance(factory, AutoregressiveEncoderFactory):
        return AutoregressivePolicy(observation_shape[0], nvec, factory.sizes)
    return FactoredPolicy(observation_shape, factory.create(observation_shape), nvec)


register_encoder_factory(AutoregressiveEncoderFactory)
register_encoder_factory(SAINTEncoderFactory)
register_encoder_factory(SPINEncoderFactory)
