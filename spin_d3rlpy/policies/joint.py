"""The structure model itself as a policy: whole actions from the joint distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from d3rlpy.types import TorchObservation

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.model import ActionStructureModel, StructureConfig
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.asm.sampling import in_parts, sample, slot_log_probs
from spin_d3rlpy.asm.surest import choose_surest
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.policies.base import Conditionals, Policy, choose_in_order
from spin_d3rlpy.policies.features import require_same_sizes

OrderName: TypeAlias = Literal["slots", "confidence", "margin"]


class JointPolicy(Policy):
    """Acts by an Action Structure Model, slot after slot, each in view of those before it.

    It is learned in pre-training alone; no objective changes it. `greedy`, `decode` and `sample`
    choose slots in the given order, see `SPINJoint`.
    """

    pretrained: torch.Tensor  # ()

    def __init__(
        self,
        observation_size: int,
        nvec: Sequence[int],
        structure: StructureConfig,
        order: OrderName = "slots",
        entropy_bound: float | None = None,
        slots_per_pass: int = 1,
    ) -> None:
        asm = ActionStructureModel(observation_size, nvec, structure)
        super().__init__(asm.layout)
        self.asm = asm
        self.order: OrderName = order
        self.entropy_bound = entropy_bound
        self.slots_per_pass = slots_per_pass
        self.register_buffer("pretrained", torch.tensor(False))
        self.freeze()
        self.train()

    @property
    def is_pretrained(self) -> bool:
        return bool(self.pretrained)

    def freeze(self) -> None:
        self.asm.requires_grad_(False)

    def train(self, mode: bool = True) -> JointPolicy:
        """Switches mode; the model stays in evaluation mode, without dropout."""
        super().train(mode)
        self.asm.eval()
        return self

    def load_asm(self, asm: ActionStructureModel) -> None:
        """Takes over the model; NvecMismatchError if it is of another action space or size."""
        require_same_nvec(self.layout.nvec, asm.nvec, "The policy", "the ASM")
        require_same_sizes(self.asm.config, asm)
        self.asm.load_state_dict(asm.state_dict())
        self.asm.observation_scaler = asm.observation_scaler
        self.pretrained.fill_(True)

    def trainable_modules(self) -> list[tuple[str, torch.nn.Module]]:
        return []

    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        assert isinstance(observations, torch.Tensor)
        slots = range(self.layout.n_slots)
        return slot_log_probs(self.asm, observations, actions.long(), slots).sum(1)

    def conditionals(self, observations: torch.Tensor, actions: torch.Tensor) -> Conditionals:
        return self.asm.slot_by_slot(observations, actions)

    def decode(
        self,
        observations: torch.Tensor,
        noise: torch.Tensor | None = None,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        if self.order != "slots":
            return self._decode_surest(observations, noise, rule)
        return choose_in_order(self.layout, self.asm.slot_by_slot(observations), noise, rule)

    def _decode_surest(
        self, observations: torch.Tensor, noise: torch.Tensor | None, rule: Rule | None
    ) -> torch.Tensor:
        """Chooses the surest slots first."""
        if self.entropy_bound is not None and rule is None and not is_exporting():
            assert self.order != "slots"
            return sample(
                self.asm,
                observations,
                temperature=0.0 if noise is None else 1.0,
                order=self.order,
                entropy_bound=self.entropy_bound,
                noise=None if noise is None else noise[None],
            )[0]
        # A rule may be a mask of these rows, and a file has any number of rows.
        if rule is not None or is_exporting():
            return self._choose_surest(observations, noise, rule)

        return in_parts(self.asm, self._choose_surest, observations, noise)

    def _choose_surest(
        self, x: torch.Tensor, noise: torch.Tensor | None, rule: Rule | None = None
    ) -> torch.Tensor:
        return choose_surest(self.asm, x, self.order, noise, rule, self.slots_per_pass)
