"""Greedy actions of any policy that keep to conditions: choices made already, a mask or a rule."""

from __future__ import annotations

from typing import Any

import torch

from spin_d3rlpy.asm.conditions import ArrayLike, Order
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.asm.sampling import sample
from spin_d3rlpy.policies.base import IndependentPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.joint import JointPolicy


class _SlotDistributions:
    """A policy in place of a structure model: logits of every slot, given partial actions."""

    def __init__(self, policy: IndependentPolicy | SlotOrderPolicy) -> None:
        self._policy = policy
        self.layout, self.nvec = policy.layout, policy.layout.nvec
        # Open slots, as a structure model marks them. An LSTM does not see those after a slot.
        self.mask_ids = torch.tensor(self.nvec, device=self.layout.offsets.device)

    @property
    def training(self) -> bool:
        return self._policy.training

    def train(self, mode: bool = True) -> Any:
        self._policy.train(mode)
        return self

    def __call__(self, observations: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if isinstance(self._policy, SlotOrderPolicy):
            logits: torch.Tensor = self._policy(observations, tokens)
        else:
            logits = self._policy(observations)
        return logits

    def slot_by_slot(self, observations: torch.Tensor) -> Any:
        raise NotImplementedError  # log-probabilities of policies have a method of their own


def greedy_with(
    policy: Policy,
    observations: torch.Tensor,
    given: ArrayLike | None = None,
    allowed: ArrayLike | Rule | None = None,
    rule: Rule | None = None,
) -> torch.Tensor:
    """Returns the most likely allowed choices `(B, N)`, slot after slot.

    Independent slots are chosen by confidence, the surest first; others in their order. Arguments
    and errors are those of `spin_d3rlpy.asm.sampling.sample`; a ValueError says that a policy tells
    no distribution of its slots.
    """
    order: Order = range(policy.layout.n_slots)
    model: Any
    if isinstance(policy, JointPolicy):
        model = policy.asm
    elif isinstance(policy, SlotOrderPolicy):
        model = _SlotDistributions(policy)
    elif isinstance(policy, IndependentPolicy):
        model, order = _SlotDistributions(policy), "confidence"
    else:
        raise ValueError(
            "Expected a policy of independent slots, an autoregressive one or a structure model; a "
            f"{type(policy).__name__} tells no distribution of its slots."
        )
    conditions: dict[str, Any] = {"given": given, "allowed": allowed, "rule": rule}
    return sample(model, observations, temperature=0.0, order=order, **conditions)[0]
