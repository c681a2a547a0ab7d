"""A structure model of slots that have features and share choices that have none.

One network maps a slot's features to its scores of all choices, as for agents that each see
something else and have the same few moves. It also sees a summary of all slots, and what those
slots are that have chosen already, with their choices. Permuting slots permutes its scores.

Axes: `B` rows, `N` slots, `K` choices, `W` width, `T` width of a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import embedding, relu

from spin_d3rlpy.asm.dropout import relu_and_dropout
from spin_d3rlpy.asm.entities import (
    Attention,
    EntityConfig,
    EntityFeatures,
    encoder_of_objects,
    linear_of,
)
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.nvec import Slots, rows_of

# Of what is known of other slots. As wide as the rest, it over-fits where slots hardly depend on
# each other.
TOKEN_WIDTH = 16


class SlotScorer(nn.Module):
    """Maps observations and tokens to logits of all slots.

    What other slots are and choose is added with weights of zero at first, so that a slot's own
    features are learned first.
    """

    def __init__(self, observation_size: int, nvec: Sequence[int], config: EntityConfig) -> None:
        super().__init__()
        self.features = EntityFeatures(observation_size, nvec, config.layout)
        width, features = config.slot_width, self.features
        self.slot = linear_of(features.slot_size, width)
        self.context = linear_of(features.context_size, width, bias=False)
        self.objects = encoder_of_objects(features, width)
        self.token = linear_of(features.slot_size, TOKEN_WIDTH)
        # The last row, of slots that have not chosen, is not used.
        self.choice = nn.Parameter(torch.randn(features.n_choices + 1, TOKEN_WIDTH))
        self.all_slots = nn.Linear(TOKEN_WIDTH, width, bias=False)
        self.made = nn.Linear(TOKEN_WIDTH, width, bias=False)
        for of_others in (self.all_slots, self.made):
            nn.init.zeros_(of_others.weight)
        self.norm = nn.LayerNorm(width)
        hidden = [
            part
            for _ in range(config.n_layers - 1)
            for part in (nn.Linear(width, width), nn.LayerNorm(width), relu_and_dropout())
        ]
        self.activation = relu_and_dropout()
        self.hidden = nn.Sequential(*hidden)
        self.out = nn.Linear(width, features.n_choices)

    def open(self, observations: torch.Tensor) -> SlotScores:
        """Returns what depends on the state alone."""
        return SlotScores(self, observations)


class SlotScores:
    """A state's part of the scores of slots, to which choices that are made are added."""

    def __init__(self, scorer: SlotScorer, observations: torch.Tensor) -> None:
        self._scorer, features = scorer, scorer.features
        slots = features.slots(observations)
        self._tokens = scorer.token(slots)  # (B, N, T)
        common = scorer.context(features.context(observations))
        common = common + scorer.all_slots(relu(self._tokens).mean(1))
        of_slots = scorer.slot(slots) + scorer.objects(observations)  # (B, N, W)
        self._slots, self._common = of_slots + common[:, None], common

    def attend(self, attention: Attention) -> None:
        """Applies self-attention over slots."""
        no_choices = self._slots[:, :0]  # they have no features
        self._slots, _ = attention(self._slots, no_choices, self._common)

    def made(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns what choices add up to: slots with their choices, `(B, T)`, of `(B, N)`."""
        return self._chosen(tokens).sum(1)

    def made_before(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns for each slot what `made` gives of the slots before it, `(B, N, T)`."""
        chosen = self._chosen(tokens)
        return chosen.cumsum(1) - chosen

    def _chosen(self, tokens: torch.Tensor) -> torch.Tensor:
        """Slots with their choices, `(B, N, T)`; zeros of those that have none."""
        chosen = relu(self._tokens + embedding(tokens, self._scorer.choice))
        is_made = (tokens < self._scorer.features.n_choices)[..., None]
        return chosen * is_made.to(chosen.dtype)

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits in view of all others' choices `(B, N)`, `(B, N, K)`."""
        chosen = self._chosen(actions)
        return self.logits(chosen.sum(1, keepdim=True) - chosen)

    def with_choice(self, made: torch.Tensor, slot: int, choice: torch.Tensor) -> torch.Tensor:
        """Returns sums with a slot's choices `(B,)`."""
        return made + relu(self._tokens[:, slot] + embedding(choice, self._scorer.choice))

    def logits(self, made: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(B, N, K)` in view of what is made, `(B, T)` or each slot's `(B, N, T)`.

        Of some slots they are `(B, C, K)`.
        """
        scorer = self._scorer
        made = made[:, None] if made.dim() == 2 else made
        x = rows_of(self._slots, slots) + scorer.made(made / scorer.features.n_slots)
        hidden = scorer.hidden(scorer.activation(scorer.norm(x)))
        logits: torch.Tensor = in_float32(scorer.out, hidden)
        return logits
