"""The structure model itself as a policy: whole actions from the joint distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from d3rlpy.types import TorchObservation

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.decoding import (
    Conditionals,
    OrderName,
    Passes,
    decode,
    decode_in_groups,
    urgency_of,
)
from spin_d3rlpy.asm.entities import PairScorer
from spin_d3rlpy.asm.model import ActionStructureModel, StructureConfig
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.asm.sampling import in_parts, slot_log_probs
from spin_d3rlpy.asm.scorers import PairDrafts
from spin_d3rlpy.images import encode_images
from spin_d3rlpy.nvec import gumbel_noise, require_same_nvec
from spin_d3rlpy.policies.base import Policy
from spin_d3rlpy.policies.features import require_same_sizes

# Of a network that scores each slot for itself, slots that are scored again before each pass: those
# that were the surest when last looked at. Scoring all pairs of 50 slots and choices before every
# choice costs four times the time of these alone, for the same returns on `spin/dispatch-v0`.
CONSIDERED = 8
# Of many slots, drafts of four passes are as good starts as samples (21 joints). Of few they are
# not: the ward's six doses go together, and samples of all six return 0.8 % more.
DRAFT_PASSES, FEW_SLOTS = 4, 10
# A search from half as many drafts of pairs, by a lower temperature, returns more than from as many
# as samples by 1.0 (20 and 50 couriers). Elsewhere it returns less (doses, joints).
PAIR_DRAFTS_SHARE, PAIR_DRAFTS_TEMPERATURE = 0.5, 0.5
DRAFTS_AT_ONCE = 512  # of all states; more leave a processor's cache
DRAFTS_ON_GPUS = 2**16  # less than 1 GB of pairs with 50 couriers and 32 drafts


class JointPolicy(Policy):
    """Acts by an Action Structure Model, slot after slot, each in view of those before it.

    It is learned in pre-training alone; no objective changes it. For the arguments see
    `SPINJoint`.
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
        super().__init__(asm.slot_layout)
        self.asm = asm
        self.order = order
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
        require_same_nvec(self.slot_layout.nvec, asm.nvec, "The policy", "the ASM")
        require_same_sizes(self.asm.config, asm)
        self.asm.load_state_dict(asm.state_dict())
        self.asm.observation_scaler = asm.observation_scaler
        self.pretrained.fill_(True)

    def trainable_modules(self) -> list[tuple[str, torch.nn.Module]]:
        return []

    def log_prob(self, observations: TorchObservation, actions: torch.Tensor) -> torch.Tensor:
        assert isinstance(observations, torch.Tensor)
        slots = range(self.slot_layout.n_slots)
        return slot_log_probs(self.asm, observations, actions.long(), slots).sum(1)

    def conditionals_of_any(self, observations: torch.Tensor) -> Conditionals:
        return self.asm.slot_by_slot(observations)

    def decode(
        self,
        observations: torch.Tensor,
        noise: torch.Tensor | None = None,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Policy.decode`; choices that are made already may be given, `(B, N)`, -1 if not."""
        order: OrderName | torch.Tensor = self.order
        if given is not None and self.order == "slots":  # in view of all that is given
            ranks = torch.arange(self.slot_layout.n_slots, dtype=torch.float32, device=given.device)
            order = ranks.expand_as(given)

        def fill(x: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
            passes = self._passes(rule)
            conditionals = self.conditionals(x)
            return decode(conditionals, order, rule, noise, given=given, passes=passes)

        # A rule may be a mask of these rows, and a file has any number of rows.
        if self.order == "slots" or rule is not None or given is not None or is_exporting():
            return fill(observations, noise)
        return in_parts(self.asm, fill, observations, noise)

    def draft_several(
        self,
        observations: torch.Tensor,
        n: int,
        noise: torch.Tensor | None = None,
        temperature: float = 1.0,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Policy.draft_several`.

        Where pairs are scored, two passes of the network give all drafts' logits, and half as many
        drafts are enough. Elsewhere four passes choose a quarter of the slots each, as if
        independent of each other; of few slots, with a rule, or with choices that are made already,
        drafts are samples.

        Args:
            observations: `(B, obs)`.
            n: samples of each that drafts stand for.
            noise: Gumbel noise `(n, S)` or `(n, B, S)`; None draws it.
            temperature: by which noise is multiplied.
            rule: see `spin_d3rlpy.asm.rules`.
            given: choices that are made already, `(n * B, N)`, -1 if not.
        """
        x, scorer = encode_images(self, observations), self.asm.scorer
        if noise is None:
            noise = gumbel_noise(torch.empty((n, len(x), self.slot_layout.total), device=x.device))
        noise = (noise if noise.dim() == 3 else noise[:, None]) * temperature  # (n, 1 or B, S)
        if not isinstance(scorer, PairScorer) or self.order == "slots":
            each, repeated = noise.expand(-1, x.shape[0], -1).flatten(0, 1), x.repeat(n, 1)
            is_free = rule is None and given is None
            if is_free and self.slot_layout.n_slots > FEW_SLOTS:
                conditionals = self.conditionals_of_any(repeated)
                rows = decode_in_groups(conditionals, DRAFT_PASSES, each)
            else:
                rows = self.decode(repeated, each, rule, given)
            drafts: torch.Tensor = rows.unflatten(0, (n, -1))
            return drafts
        n = math.ceil(PAIR_DRAFTS_SHARE * n)
        noise = PAIR_DRAFTS_TEMPERATURE * noise[:n]
        given = None if given is None else given[: n * len(x)]
        # As in `decode`.
        if rule is not None or given is not None or is_exporting():
            return self._drafts(scorer, x, noise, rule, given)
        at_once = max(1, (DRAFTS_AT_ONCE if x.device.type == "cpu" else DRAFTS_ON_GPUS) // n)
        parts = [slice(i, i + at_once) for i in range(0, max(1, len(x)), at_once)]
        of_parts = [
            self._drafts(scorer, x[part], noise if noise.shape[1] == 1 else noise[:, part])
            for part in parts
        ]
        return of_parts[0] if len(of_parts) == 1 else torch.cat(of_parts, dim=1)

    def _drafts(
        self,
        scorer: PairScorer,
        x: torch.Tensor,
        noise: torch.Tensor,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns `(n, B, N)` by noise `(n, 1 or B, S)`; see `draft_several`."""
        n, order = noise.shape[0], self.order
        # Half as many slots a pass as of samples: what is looked up costs little.
        passes = self._passes(rule, max(1, self.slots_per_pass // 2))
        logits = PairDrafts(scorer, self.slot_layout, x, n)
        urgency = urgency_of(logits.of_states, order).repeat(n, 1)
        added = noise if noise.shape[1] == 1 else noise.flatten(0, 1)
        rows = decode(logits, order, rule, added, given=given, passes=passes, urgency=urgency)
        drafts: torch.Tensor = rows.unflatten(0, (n, -1))
        return drafts

    def _passes(self, rule: Rule | None, slots_per_pass: int | None = None) -> Passes:
        """How many slots are chosen from one pass of the network, and how many it looks at.

        A network of pairs sees earlier choices as properties of the choices, so that slots which
        take different ones hardly depend on each other.
        """
        is_free = rule is None and self.order != "slots"
        if is_free and self.entropy_bound is not None and not is_exporting():
            return Passes(entropy_bound=self.entropy_bound)
        by_pairs = isinstance(self.asm.scorer, PairScorer)
        n = slots_per_pass or self.slots_per_pass if is_free and by_pairs else 1
        considered = None if self.asm.scorer is None else max(CONSIDERED, 2 * n)
        return Passes(n, differing=True, considered=considered)
