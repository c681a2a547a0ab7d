"""What an objective needs of a policy, and the policies whose slots are independent given s."""

from __future__ import annotations

from abc import abstractmethod

import torch
from d3rlpy.types import TorchObservation
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy.nvec import SlotLayout


class Policy(nn.Module):
    """A distribution over actions `(N,)` given a state.

    Args:
        layout: of the action space.
    """

    def __init__(self, layout: SlotLayout) -> None:
        super().__init__()
        self.layout = layout

    @abstractmethod
    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        """Joint log-probability `(B,)` of actions `(B, N)`: the sum over slots."""

    @abstractmethod
    def greedy(self, observations: TorchObservation) -> torch.Tensor:
        """Most likely choices, `(B, N)`."""

    @abstractmethod
    def sample(self, observations: TorchObservation) -> torch.Tensor:
        """Sampled choices, `(B, N)`."""

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules whose parameters the actor's optimizer gets."""
        return [("policy", self)]


class IndependentPolicy(Policy):
    """A policy whose `forward` gives every slot's logits at once, flat `(B, S)`."""

    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        """Joint log-probability `(B,)` of actions `(B, N)`."""
        logits = self.layout.split(self(observations))  # (B, N, K)
        negative = cross_entropy(logits.flatten(0, 1), actions.long().flatten(), reduction="none")
        log_probs: torch.Tensor = -negative.unflatten(0, (-1, self.layout.n_slots)).sum(-1)
        return log_probs

    def greedy(self, observations: TorchObservation) -> torch.Tensor:
        """Each slot's most likely choice, which together are the mode, `(B, N)`."""
        return self.layout.argmax(self(observations))

    def sample(self, observations: TorchObservation) -> torch.Tensor:
        """Draws every slot by the Gumbel-max trick, `(B, N)`."""
        logits = self(observations)
        gumbel = -torch.log(torch.empty_like(logits).exponential_())
        return self.layout.argmax(logits + gumbel)
