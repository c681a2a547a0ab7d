"""Greedy actions of any policy that keep to conditions: choices made already, a mask or a rule."""

from __future__ import annotations

import torch

from spin_d3rlpy.asm.conditions import ArrayLike, as_conditions
from spin_d3rlpy.asm.decoding import decode
from spin_d3rlpy.asm.rules import RowMask, Rule, both_rules
from spin_d3rlpy.asm.sampling import in_parts, sample
from spin_d3rlpy.policies.base import IndependentPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.joint import JointPolicy


@torch.no_grad()
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
    if isinstance(policy, JointPolicy):  # in view of what is given for later slots, too
        return sample(policy.asm, observations, 1, 0.0, given, allowed, "slots", rule=rule)[0]
    if not isinstance(policy, IndependentPolicy | SlotOrderPolicy):
        raise ValueError(
            "Expected a policy of independent slots, an autoregressive one or a structure model; a "
            f"{type(policy).__name__} tells no distribution of its slots."
        )
    choices, mask, others = as_conditions(observations, policy.slot_layout, given, allowed, rule)

    def choose(x: torch.Tensor, choices: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        conditions = both_rules(None if mask is None else RowMask(mask), others)
        return decode(policy.conditionals(x), policy.order, conditions, given=choices)

    return in_parts(policy, choose, observations, choices, mask)
