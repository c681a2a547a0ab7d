"""What critics have in common, state values, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from d3rlpy.types import TorchObservation
from torch import nn

from spin_d3rlpy import fast
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast.precision import outputs_of
from spin_d3rlpy.images import behind_images
from spin_d3rlpy.nvec import SlotLayout

Gammas: TypeAlias = Sequence[float]


class Scale(Protocol):
    """Maps returns to what networks predict, and back."""

    @property
    def spread(self) -> float:
        """Standard deviation of returns by the first discount; 0 if it is not known."""

    def standardize(self, returns: torch.Tensor) -> torch.Tensor:
        """Maps returns `(G, B)` by G discounts to what networks predict."""

    def restore(self, standardized: torch.Tensor) -> torch.Tensor:
        """Maps predictions `(G, B)` to returns."""


class Unscaled:
    """Networks predict returns."""

    spread = 0.0

    def standardize(self, returns: torch.Tensor) -> torch.Tensor:
        return returns

    def restore(self, standardized: torch.Tensor) -> torch.Tensor:
        return standardized


class ReturnScale(nn.Module):
    """Mean and standard deviation of returns by each of G discounts, or of several rewards.

    Networks predict standardized returns, so that all of them count alike in a loss.
    """

    mean: torch.Tensor  # (G,)
    std: torch.Tensor  # (G,)

    def __init__(self, n_returns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_returns))
        self.register_buffer("std", torch.ones(n_returns))

    @property
    def spread(self) -> float:
        """Standard deviation of returns by the first discount."""
        return float(self.std[0])

    def fit(self, returns: torch.Tensor) -> None:
        """Takes both from returns `(G, n)`; those that do not vary are only shifted."""
        self.mean.copy_(returns.mean(1))
        std = returns.std(1)
        self.std.copy_(torch.where(std > 1e-6, std, 1.0))

    def standardize(self, returns: torch.Tensor) -> torch.Tensor:
        """Maps returns `(G, B)` by G discounts to what networks predict."""
        return (returns - self.mean[:, None]) / self.std[:, None]

    def restore(self, standardized: torch.Tensor) -> torch.Tensor:
        """Maps predictions `(G, B)` to returns."""
        return standardized * self.std[:, None] + self.mean[:, None]


class ActionCritic(nn.ModuleList):
    """An ensemble of E functions `Q(s, a)`, by one discount or more (G).

    A `ModuleList` because d3rlpy copies and exports Q functions as one.
    """

    def q_values(
        self, slot_layout: SlotLayout, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)`, `(E, [A,] B)`, for actions `([A,] B, N)`, in units of returns.

        They are by the discount that the critic acts by.
        """
        raise NotImplementedError

    def values_by(
        self,
        discount: int,
        slot_layout: SlotLayout,
        observations: torch.Tensor,
        actions: torch.Tensor,
    ) -> torch.Tensor:
        """Returns `Q_e(s, a)` by the discount of a number, otherwise as `q_values`."""
        return self.q_values(slot_layout, observations, actions)

    def predictions(
        self, slot_layout: SlotLayout, observations: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns what the networks say of actions `(B, N)`, which `loss` learns by.

        Here these are values by all discounts, in units of `scale`, `(E, G, B)`.
        """
        return self.q_values(slot_layout, observations, actions)[:, None]

    def means(self, predictions: torch.Tensor) -> torch.Tensor:
        """Returns the values by all discounts that predictions stand for, `(E, G, B)`."""
        return predictions

    def standardized(
        self, slot_layout: SlotLayout, observations: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns values by all discounts of actions `(B, N)`, in units of `scale`, `(E, G, B)`."""
        return self.means(self.predictions(slot_layout, observations, actions))

    def loss(
        self,
        predictions: torch.Tensor,
        targets: torch.Tensor,
        are_fatal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the loss of values by all discounts, added over these and the ensemble.

        Args:
            predictions: of actions `(B, N)`.
            targets: in units of `scale`, `(G, B)`.
            are_fatal: which of them are fatal ends, bool `(B,)`, for critics that tell these apart.
        """
        return squared_error(predictions.flatten(0, 1), targets.repeat(len(predictions), 1))

    @property
    def scale(self) -> Scale:
        """Of the networks' predictions."""
        return Unscaled()

    @property
    def spread(self) -> float:
        """Standard deviation of the data's returns by the first discount; 0: not known."""
        return self.scale.spread

    def fit_scale(self, buffer: DeviceReplayBuffer, rewards: torch.Tensor, gammas: Gammas) -> None:
        """Fits `scale` to the returns of a dataset.

        Args:
            buffer: the dataset.
            rewards: its rewards, one or several of each transition, `(R, n)`, scaled as in
                training.
            gammas: the G discounts.
        """

    def act_by(self, discount: int) -> None:
        """Makes `q_values` those by the discount of a number."""


def create_encoder(factory: EncoderFactory, observation_shape: Sequence[int]) -> nn.Module:
    """Returns a network of observations by d3rlpy's factory, behind an encoder of their images."""
    network: nn.Module = behind_images(observation_shape[0], lambda size: factory.create((size,)))
    return network


class ValueFunction(nn.Module):
    """Maps observations `(B, obs)` to state values `(B,)`, or `(G, B)` by several discounts.

    Args:
        observation_shape: shape of one observation.
        encoder_factory: d3rlpy factory of the hidden layers.
        n_discounts: discounts (G) by which states are valued.
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        encoder_factory: EncoderFactory,
        n_discounts: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = create_encoder(encoder_factory, observation_shape)
        width = compute_output_size([observation_shape], self.encoder)
        self.head = nn.Linear(width, n_discounts)

    def forward(self, observations: TorchObservation) -> torch.Tensor:
        """Returns state values `(B,)`, or `(G, B)` of more than one discount."""
        values = outputs_of([(self.encoder, self.head)], observations).squeeze(0)  # (B, G)
        return values[:, 0] if values.shape[1] == 1 else values.T


def expectile_loss(u: torch.Tensor, expectile: float) -> torch.Tensor:
    """Mean of `|expectile - 1(u < 0)| u^2` (IQL, Kostrikov et al. 2021, equation 5)."""
    if fast.switch.counts_launches(u):
        return fast.losses.expectile(u, expectile)
    weight = (expectile - (u < 0).to(u.dtype)).abs()
    return (weight * u.square()).mean()


def squared_error(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over rows of the squared error of values `(E, B)`, added over the ensemble."""
    error = values - targets
    if fast.switch.counts_launches(error):
        return fast.losses.squared_error(error, 1.0 / error.shape[1])
    return error.square().mean(1).sum()


def best_of(actions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns of A actions `(A, B, N)` those of the largest least value `(E, A, B)`, `(B, N)`."""
    best = values.amin(0).argmax(0)[None, :, None].expand(-1, -1, actions.shape[-1])
    return actions.gather(0, best)[0]
