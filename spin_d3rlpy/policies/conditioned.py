"""Greedy actions of any policy that keep to conditions: choices made already, a mask or a rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spin_d3rlpy.asm.conditions import ArrayLike, as_conditions
from spin_d3rlpy.asm.decoding import decode
from spin_d3rlpy.asm.rules import AnyRule, conditions_of
from spin_d3rlpy.asm.sampling import in_parts, sample
from spin_d3rlpy.policies.base import IndependentPolicy, Policy, SlotOrderPolicy
from spin_d3rlpy.policies.joint import JointPolicy


@torch.no_grad()
def greedy_with(
    policy: Policy,
    observations: torch.Tensor,
    given: ArrayLike | None = None,
    allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
    rule: AnyRule | None = None,
    states: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the most likely allowed choices `(B, N)`, slot after slot.

    Independent slots are chosen by confidence, the surest first; others in their order. Arguments
    and errors are those of `spin_d3rlpy.asm.sampling.sample`; a ValueError says that a policy tells
    no distribution of its slots.
    """
    if isinstance(policy, JointPolicy):  # in view of what is given for later slots, too
        return sample(
            policy.asm, observations, 1, 0.0, given, allowed, "slots", rule=rule, states=states
        )[0]
    if not isinstance(policy, IndependentPolicy | SlotOrderPolicy):
        raise ValueError(
            "Expected a policy of independent slots, an autoregressive one or a structure model; a "
            f"{type(policy).__name__} tells no distribution of its slots."
        )
    seen, slots = observations if states is None else states, policy.slot_layout
    choices, mask, both = as_conditions(observations, slots, given, allowed, rule, seen)

    def choose(
        x: torch.Tensor, choices: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        conditions = conditions_of(mask, both, states)
        return decode(policy.conditionals(x), policy.order, conditions, given=choices)

    return in_parts(policy, choose, observations, choices, seen, mask)
