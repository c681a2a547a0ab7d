"""What an objective needs of a policy, and the policies whose slots are independent given s."""

from __future__ import annotations

from abc import abstractmethod

import torch
from d3rlpy.types import TorchObservation
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy import fast
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.features import SlotFeatures


class Policy(nn.Module):
    """A distribution over actions `(N,)` given a state.

    Args:
        layout: of the action space.
    """

    def __init__(self, layout: SlotLayout) -> None:
        super().__init__()
        self.layout = layout

    @property
    def n_tokens(self) -> int:
        """Rows of its matrix products for one observation."""
        return 1

    @abstractmethod
    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        """Joint log-probability `(B,)` of actions `(B, N)`: the sum over slots."""

    @abstractmethod
    def decode(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Chooses per slot the largest of logits (+ noise), `(B, N)`.

        Args:
            observations: `(B, obs)`.
            noise: added to the logits, `(B, S)`. With Gumbel noise the result is a sample; without
                noise it is the greedy action.
        """

    def greedy(self, observations: torch.Tensor) -> torch.Tensor:
        """The greedy action `(B, N)`; the mode if slots are independent given the state."""
        return self.decode(observations)

    def sample(self, observations: torch.Tensor) -> torch.Tensor:
        """Sampled choices, `(B, N)`."""
        shape = (observations.shape[0], self.layout.total)
        return self.decode(
            observations, gumbel_noise(torch.empty(shape, device=observations.device))
        )

    def sample_several(
        self, observations: torch.Tensor, n: int, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Samples `n` actions per state, `(n, B, N)`.

        Args:
            observations: `(B, obs)`.
            n: actions per state.
            noise: Gumbel noise `(n, S)` to use for every state; fresh noise if None.
        """
        repeated = observations.expand(n, -1, -1).flatten(0, 1)
        if noise is None:
            actions = self.sample(repeated)
        else:
            actions = self.decode(
                repeated, noise[:, None].expand(-1, observations.shape[0], -1).flatten(0, 1)
            )
        samples: torch.Tensor = actions.unflatten(0, (n, -1))
        return samples

    def trainable_modules(self) -> list[tuple[str, nn.Module]]:
        """Named modules whose parameters the actor's optimizer gets."""
        return [("policy", self)]

    # -- first stages, for policies that have some -------------------------------------------

    @property
    def is_pretrained(self) -> bool:
        """Whether the policy's first stages are done (also after loading a saved policy)."""
        return False

    def freeze(self, grad_step: int) -> None:
        """Withholds gradients from parameters that this gradient step, from 0, does not train."""

    def frozen_features(self, grad_step: int) -> SlotFeatures | None:
        """The part of the network that no longer changes, if there is one; it can be cached."""
        return None


class IndependentPolicy(Policy):
    """A policy whose `forward` gives every slot's logits at once, flat `(B, S)`."""

    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        """Joint log-probability `(B,)` of actions `(B, N)`."""
        return joint_log_prob(self.layout, self(observations), actions)

    def decode(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Chooses all slots at once, `(B, N)`."""
        logits = self(observations)
        return self.layout.argmax(logits if noise is None else logits + noise)


def joint_log_prob(layout: SlotLayout, logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Sum over slots of log-probabilities: flat logits `(B, S)`, actions `(B, N)` give `(B,)`."""
    split = layout.split(logits)  # (B, N, K)
    if fast.switch.counts_launches(logits):
        return fast.losses.slot_log_prob(split, actions.long())
    negative = cross_entropy(split.flatten(0, 1), actions.long().flatten(), reduction="none")
    log_probs: torch.Tensor = -negative.unflatten(0, (-1, layout.n_slots)).sum(-1)
    return log_probs


def keep_supported(
    layout: SlotLayout, utilities: torch.Tensor, logits: torch.Tensor, least_share: float
) -> torch.Tensor:
    """Splits utilities by slot, with `-inf` for choices that the policy hardly takes.

    Args:
        layout: of the action space.
        utilities: `(..., B, S)`.
        logits: the policy's, `(B, S)`.
        least_share: a choice is kept if its probability is at least this share of the slot's most
            likely choice's.

    Returns:
        `(..., B, N, K)`.
    """
    split = layout.split(logits)
    share = (split - split.amax(-1, keepdim=True)).exp()
    return layout.split(utilities).masked_fill(share < least_share, -torch.inf)


# Of the noise by which `predict` draws candidates: the same in every process.
_CANDIDATE_SEED = 0


def candidate_noise(layout: SlotLayout, n: int, device: str) -> torch.Tensor:
    """Gumbel noise `(n, S)` that is always the same."""
    generator = torch.Generator().manual_seed(_CANDIDATE_SEED)
    # Drawn on the CPU, so that it is the same on every device.
    return gumbel_noise(torch.empty(n, layout.total, device="cpu"), generator).to(device)


def gumbel_noise(like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Standard Gumbel noise of a tensor's shape: `argmax(logits + noise)` draws from softmax."""
    return -torch.log(torch.empty_like(like).exponential_(generator=generator))
