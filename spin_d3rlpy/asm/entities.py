"""A structure model that scores pairs of slots and choices by their features.

Every pair of a slot and a choice gets its logit from one small network, which sees the features of
both, their differences, a summary of all slots and choices, and how often the choice is made
already. Weights depend on the number of features only: a model of 10 couriers serves 50, and
permuting slots or choices permutes its logits.

Axes: `B` rows, `N` slots, `K` choices, `W` width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import relu

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.dropout import relu_and_dropout
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.nvec import Slots, rows_of
from spin_envs.layout import ActionLayout

# Maps slots `(B, N, W)`, choices `(B, K, W)` and a state's summary `(B, W)` to slots and choices.
Attention: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]
]
COUNT_FEATURES = 2  # how many slots make a choice, and whether any does
OBJECT_WIDTH = 32  # of a slot with an object, at most
LEAST_ROWS = 32  # of a batch that is cut
ENTRIES_AT_ONCE = 2**17  # numbers of the largest array, half a MB in float32


@dataclasses.dataclass()
class EntityConfig:
    """Sizes of a network that scores by features, and the features that it sees.

    Args:
        width: of its layers, where it scores pairs of a slot and a choice.
        n_layers: hidden layers of a pair's or a slot's network.
        layout: where the features of slots and choices are.
        slot_width: of its layers, where choices have no features and it scores slots.
        entries_per_update: most numbers in the largest array of a training batch. Every row has
            a number for each pair of a slot and a choice, so that batches with as many rows as
            those of other networks would leave time for few updates; None cuts no batch.
    """

    width: int = 32
    n_layers: int = 2
    layout: ActionLayout = dataclasses.field(default_factory=ActionLayout)
    slot_width: int = 64
    # How a model was trained does not tell two models apart.
    entries_per_update: int | None = dataclasses.field(default=2_000_000, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.layout, Mapping):  # read from a file
            self.layout = ActionLayout.from_dict(self.layout)
        check_fields(self)

    def entries_a_row(self, n_slots: int) -> int:
        """Numbers in the largest array of one row of a batch."""
        if not self.layout.has_choice_features:
            of_objects = len(self.layout.object_columns) * min(self.slot_width, OBJECT_WIDTH)
            return n_slots * max(self.slot_width, of_objects)
        of_pairs = self.layout.pair_columns[0] if self.layout.pair_columns else ()
        tables = self.layout.choice_columns, self.layout.choice_features, of_pairs
        n_choices = max(len(table) for table in tables)
        if self.layout.has_slot_features:
            return n_slots * n_choices * self.width
        # Slots without features have equal scores, computed once.
        return n_choices * max(self.width, n_slots)

    def rows_per_update(self, batch_size: int, n_slots: int) -> int:
        """Returns how many of a batch's rows are trained on at once."""
        if self.entries_per_update is None:
            return batch_size
        rows = self.entries_per_update // self.entries_a_row(n_slots)
        return min(batch_size, max(LEAST_ROWS, rows))


class EntityFeatures(nn.Module):
    """Gathers the features of slots, choices, pairs and the context from observations.

    What it holds follows from the layout and is not saved.

    Raises:
        ValueError: a layout without features that slots share.
    """

    slot_index: torch.Tensor  # (N, f)
    choice_index: torch.Tensor  # (K, g)
    pair_index: torch.Tensor  # (N, K, p)
    object_index: torch.Tensor  # (M, g)
    context_index: torch.Tensor
    compared_of_slots: torch.Tensor  # (c,)
    compared_of_choices: torch.Tensor  # (c,)
    slot_static: torch.Tensor  # (N, f')
    choice_static: torch.Tensor  # (K, g')

    def __init__(self, observation_size: int, nvec: Sequence[int], layout: ActionLayout) -> None:
        super().__init__()
        layout.check(observation_size, nvec)
        if not layout.has_features:
            raise ValueError(
                "Expected a layout with features of choices (choice_columns, choice_features or "
                f"pair_columns): they are what a network of slots and choices scores. Got {layout}."
            )
        self.n_slots, self.n_choices = len(nvec), max(nvec)
        n, k = self.n_slots, self.n_choices
        tensors = {
            "slot_index": _rows(layout.slot_columns, n, torch.int64),
            "choice_index": _rows(layout.choice_columns, k, torch.int64),
            "pair_index": torch.tensor(layout.pair_columns or [[[]] * k] * n, dtype=torch.int64),
            "object_index": _rows(layout.object_columns, 0, torch.int64),
            "context_index": torch.tensor(
                layout.context_columns(observation_size), dtype=torch.int64
            ),
            "compared_of_slots": torch.tensor([j for j, _ in layout.compared], dtype=torch.int64),
            "compared_of_choices": torch.tensor([k for _, k in layout.compared], dtype=torch.int64),
            "slot_static": _rows(layout.slot_features, n, torch.float32),
            "choice_static": _rows(layout.choice_features, k, torch.float32),
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)
        self.compared = layout.compared
        # Slots without features cannot be told from each other: one row stands for all.
        self.slots_are_alike = not layout.has_slot_features
        self.slot_size = self.slot_index.shape[1] + self.slot_static.shape[1]
        self.choice_size = self.choice_index.shape[1] + self.choice_static.shape[1]
        self.pair_size = layout.n_pair_columns
        if layout.compared:
            self.pair_size += len(layout.compared) + 1
        self.n_objects, self.object_size = self.object_index.shape
        # Observed features come first.
        self.n_compared = min(self.slot_index.shape[1], self.object_size)
        self.context_size = len(self.context_index)
        self.choice_identity = layout.choice_identity

    def slots(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the slots' features, `(B, N, f + f')`."""
        return _joined(observations[:, self.slot_index], self.slot_static)

    def choices(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the choices' features, `(B, K, g + g')`."""
        # A column of zeros at the end is what the index -1 takes.
        padded = torch.nn.functional.pad(observations, (0, 1))
        return _joined(padded[:, self.choice_index], self.choice_static)

    def objects(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the features of what slots look at, `(B, M, g)`."""
        return observations[:, self.object_index]

    def context(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns what belongs to no slot, choice or object, `(B, c)`."""
        return observations[:, self.context_index]

    def pairs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the observed features of pairs, `(B, N, K, p)`."""
        return torch.nn.functional.pad(observations, (0, 1))[:, self.pair_index]

    def of_pairs(
        self, slots: torch.Tensor, choices: torch.Tensor, observed: torch.Tensor
    ) -> torch.Tensor:
        """Returns all features of pairs: distances of compared ones and what is observed.

        Args:
            slots: their features, `(..., f)`.
            choices: features of the choices that they are paired with, `(..., g)`.
            observed: features of these pairs, `(..., p)`.
        """
        if not self.compared:
            return observed
        if observed.shape[-1] == 0:
            return self._distances(slots, choices)
        return torch.cat([self._distances(slots, choices), observed], dim=-1)

    def _distances(self, slots: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """Returns distances of compared features and their sum."""
        of_slots = slots.index_select(-1, self.compared_of_slots)
        of_choices = choices.index_select(-1, self.compared_of_choices)
        distances = (of_slots - of_choices).abs()
        return torch.cat([distances, distances.sum(-1, keepdim=True)], dim=-1)


def _rows(table: Sequence[Sequence[Any]], n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(table, dtype=dtype) if table else torch.zeros(n, 0, dtype=dtype)


def _joined(observed: torch.Tensor, static: torch.Tensor) -> torch.Tensor:
    return torch.cat([observed, static.expand(observed.shape[0], -1, -1)], dim=-1)


def count_choices(actions: torch.Tensor, n_choices: int) -> torch.Tensor:
    """Returns how many slots of actions `(..., N)` make each choice, `(..., K)`.

    Slots that hold K, the mask, do not count.
    """
    counts = torch.zeros(*actions.shape[:-1], n_choices + 1, device=actions.device)
    counts = counts.scatter_add(-1, actions, torch.ones_like(actions, dtype=counts.dtype))
    return counts[..., :n_choices]


class NoFeatures(nn.Module):
    """What a linear layer makes of no features: its bias, or zeros."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.width = width
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `(..., 0)` to `(..., width)`."""
        zeros = torch.zeros(*x.shape[:-1], self.width, device=x.device)
        return zeros if self.bias is None else zeros + self.bias


def linear_of(n_features: int, width: int, bias: bool = True) -> nn.Linear | NoFeatures:
    """Returns a linear layer of features, also of none: loggers fail at empty weights."""
    return nn.Linear(n_features, width, bias=bias) if n_features else NoFeatures(width, bias)


class SlotsAmongObjects(nn.Module):
    """Encodes what objects are to slots; to be added to what slots are by themselves.

    Pairs of a slot and an object are encoded by the features of both and their distances. Means and
    maxima over objects tell how many there are of what a slot looks for, and where the nearest is.
    """

    def __init__(self, features: EntityFeatures, width: int) -> None:
        super().__init__()
        self.features, of_pair = features, min(width, OBJECT_WIDTH)
        self.slot = nn.Linear(features.slot_size, of_pair)
        self.object = nn.Linear(features.object_size, of_pair, bias=False)
        self.distance = nn.Linear(features.n_compared, of_pair, bias=False)
        self.norm = nn.LayerNorm(of_pair)
        self.pair = nn.Linear(of_pair, of_pair)
        self.out = nn.Linear(2 * of_pair, width, bias=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Maps observations `(B, obs)` to `(B, N, width)`."""
        features, n = self.features, self.features.n_compared
        slots, objects = features.slots(observations), features.objects(observations)
        distances = (slots[:, :, None, :n] - objects[:, None, :, :n]).abs()  # (B, N, M, n)
        both = self.slot(slots)[:, :, None] + self.object(objects)[:, None]
        pairs = self.pair(relu(self.norm(both + self.distance(distances))))  # (B, N, M, V)
        seen: torch.Tensor = self.out(torch.cat([pairs.mean(2), pairs.amax(2)], dim=-1))
        return seen


class NoObjects(nn.Module):
    """What slots see where there are no objects: nothing."""

    def forward(self, observations: torch.Tensor) -> float:
        """Maps observations to 0."""
        return 0.0


def encoder_of_objects(features: EntityFeatures, width: int) -> SlotsAmongObjects | NoObjects:
    """Returns what encodes what slots see, `(B, N, width)`, from observations `(B, obs)`."""
    return SlotsAmongObjects(features, width) if features.n_objects else NoObjects()


class KnownChoices(nn.Module):
    """Encodes choices by their features and by an embedding of each, which starts at zero."""

    def __init__(self, features: EntityFeatures, width: int) -> None:
        super().__init__()
        self.of_features = linear_of(features.choice_size, width, bias=False)
        self.embedding = nn.Parameter(torch.zeros(features.n_choices, width))

    def forward(self, choices: torch.Tensor) -> torch.Tensor:
        """Maps features of all choices `(B, K, g)` to `(B, K, width)`."""
        encoded: torch.Tensor = self.of_features(choices) + self.embedding
        return encoded


def encoder_of_choices(features: EntityFeatures, width: int) -> nn.Module:
    """Returns what encodes features of all choices `(B, K, g)` as `(B, K, width)`."""
    if features.choice_identity:
        return KnownChoices(features, width)
    return linear_of(features.choice_size, width, bias=False)


class PairScorer(nn.Module):
    """Maps observations and counts of choices made so far to logits of all pairs."""

    def __init__(self, observation_size: int, nvec: Sequence[int], config: EntityConfig) -> None:
        super().__init__()
        self.features = EntityFeatures(observation_size, nvec, config.layout)
        width, features = config.width, self.features
        self.slot = linear_of(features.slot_size, width)
        self.choice = encoder_of_choices(features, width)
        self.count = nn.Linear(COUNT_FEATURES, width, bias=False)
        self.context = linear_of(features.context_size, width, bias=False)
        self.all_slots = nn.Linear(width, width, bias=False)
        self.all_choices = nn.Linear(width, width, bias=False)
        self.made = nn.Linear(width, width, bias=False)
        self.pair = linear_of(features.pair_size, width, bias=False)
        hidden = [
            part
            for _ in range(config.n_layers - 1)
            for part in (nn.Linear(width, width), relu_and_dropout())
        ]
        self.activation = relu_and_dropout()
        self.hidden = nn.Sequential(*hidden)
        self.out = nn.Linear(width, 1)

    def open(self, observations: torch.Tensor) -> PairScores:
        """Returns what depends on the state alone."""
        return PairScores(self, observations)


class PairScores:
    """A state's part of the scores of pairs, to which counts of choices are added."""

    def __init__(self, scorer: PairScorer, observations: torch.Tensor) -> None:
        self._scorer, features = scorer, scorer.features
        slots, choices = features.slots(observations), features.choices(observations)
        if features.slots_are_alike:
            slots = slots[:, :1]
        self._slots = scorer.slot(slots)  # (B, N, W)
        self._choices = scorer.choice(choices)  # (B, K, W)
        pooled = scorer.all_slots(relu(self._slots).mean(1))
        self._common = pooled + scorer.context(features.context(observations))  # (B, W)
        # Features, (B, N, K, p): their encodings are W / p times as large, and reading them again
        # takes longer than the product.
        self._pairs: torch.Tensor | None = None
        if features.pair_size:
            self._pairs = features.of_pairs(
                slots[:, :, None], choices[:, None], features.pairs(observations)
            )

    def attend(self, attention: Attention) -> None:
        """Applies self-attention over slots and choices."""
        self._slots, self._choices = attention(self._slots, self._choices, self._common)

    def made(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns what choices add up to: counts `(B, K)` of tokens `(B, N)`."""
        return count_choices(tokens, self._scorer.features.n_choices)

    def made_before(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns for each slot what `made` gives of the slots before it, `(B, N, K)`."""
        counts = count_choices(tokens[..., None], self._scorer.features.n_choices)
        return counts.cumsum(1) - counts

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits in view of all others' choices `(B, N)`, `(B, N, K)`.

        For each slot only the entry of its own choice, which it does not see, is another one than
        for all slots; the rest is computed once.
        """
        scorer, counts = self._scorer, self.made(actions)  # (B, K)
        n_slots, n_choices = scorer.features.n_slots, scorer.features.n_choices
        choices = self._encoded(self._choices, counts)  # (B, K, W)
        active = relu(choices)
        n_own = counts.gather(1, actions)  # (B, N)
        chosen = rows_of(self._choices, actions)
        own, own_active = rows_of(choices, actions), rows_of(active, actions)
        less = self._encoded(chosen, n_own - 1.0)  # (B, N, W), what each slot sees instead
        less_active = relu(less)
        mean = active.mean(1, keepdim=True) + (less_active - own_active) / n_choices
        added = counts[:, None] @ active
        made = added + (n_own - 1.0)[..., None] * less_active - n_own[..., None] * own_active
        common = self._common[:, None] + scorer.all_choices(mean)
        of_slots = self._slots + common + scorer.made(made / n_slots)  # (B, N, W)
        own_choices = actions[..., None, None].expand(-1, -1, -1, own.shape[-1])
        differences = (less - own)[:, :, None]  # (B, N, 1, W)
        return self._scores(choices[:, None], of_slots, self._pairs, own_choices, differences)

    def _encoded(self, choices: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Adds to encoded choices `(..., W)` how often they are made, `(...)`."""
        seen = torch.stack([counts, (counts > 0.0).to(counts.dtype)], dim=-1)
        encoded: torch.Tensor = choices + self._scorer.count(seen)
        return encoded

    def _scores(
        self, choices: torch.Tensor, slots: torch.Tensor, *parts: torch.Tensor | None
    ) -> torch.Tensor:
        """Returns logits `(B, C, K)` of what pairs' first layer adds up.

        Args:
            choices: what choices add, `(B, 1 or C, K, W)`.
            slots: what slots add, `(B, 1 or C, W)`.
            *parts: see `_scores_of`; each is of all rows or None.
        """
        n, (n_rows, n_choices, width) = slots.shape[1], choices[:, 0].shape
        if torch.is_grad_enabled() or is_exporting():
            return self._scores_of(choices, slots, *parts)
        # Rows are scored a few at a time, so that what they pass through stays in the cache.
        at_once = max(1, ENTRIES_AT_ONCE // (n * n_choices * width))
        if n_rows <= at_once or choices.device.type != "cpu":
            return self._scores_of(choices, slots, *parts)
        of_rows = [
            self._scores_of(
                choices[i : i + at_once],
                slots[i : i + at_once],
                *(None if part is None else part[i : i + at_once] for part in parts),
            )
            for i in range(0, n_rows, at_once)
        ]
        return torch.cat(of_rows)

    def _scores_of(
        self,
        choices: torch.Tensor,
        slots: torch.Tensor,
        pairs: torch.Tensor | None = None,
        own_choices: torch.Tensor | None = None,
        differences: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns logits `(B, C, K)`; see `_scores`.

        Args:
            choices: what choices add.
            slots: what slots add.
            pairs: features of pairs, `(B, C, K, p)`.
            own_choices: choices `(B, C, 1, W)` of each slot to which a difference is added.
            differences: `(B, C, 1, W)`.
        """
        # In place: this is the largest array, and new memory takes as long as the sums.
        if pairs is None:
            x = choices + slots[:, :, None]
        else:
            x = self._scorer.pair(pairs).add_(choices).add_(slots[:, :, None])
        if own_choices is not None and differences is not None:
            x.scatter_add_(2, own_choices, differences)
        hidden = self._scorer.hidden(self._scorer.activation(x))
        logits: torch.Tensor = in_float32(self._scorer.out, hidden)[..., 0]
        return logits

    def with_choice(self, counts: torch.Tensor, slot: int, choice: torch.Tensor) -> torch.Tensor:
        """Returns counts with a slot's choices `(B,)`."""
        return counts.scatter_add(1, choice[:, None], torch.ones_like(counts[:, :1]))

    def logits_by_count(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns logits `(B, N, K)` of a choice that no slot makes, and of one that a slot makes.

        Both as if no other choice were made. Where slots are alike they are `(B, 1, K)`.
        """
        none = torch.zeros_like(self._choices[..., 0])
        free, made = (self._encoded(self._choices, counts) for counts in (none, none + 1.0))
        summary = self._scorer.all_choices(relu(free).mean(1)) + self._common
        of_slots = self._slots + summary[:, None]
        of_free = self._scores(free[:, None], of_slots, self._pairs)
        return of_free, self._scores(made[:, None], of_slots, self._pairs)

    def logits(self, counts: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(B, N, K)` in view of counts `(B, K)`, or of each slot's `(B, N, K)`.

        Of some slots they are `(B, C, K)`. Where slots are alike and see the same counts, they are
        always `(B, 1, K)`.
        """
        scorer = self._scorer
        if scorer.features.slots_are_alike:
            slots = None
        parts = self._slots, self._pairs  # (B, N, W) and (B, N, K, p)
        of_slots, pairs = (None if part is None else rows_of(part, slots) for part in parts)
        assert of_slots is not None
        counts = counts[:, None] if counts.dim() == 2 else counts  # (B, V, K) of V views
        choices = self._encoded(self._choices[:, None], counts)  # (B, V, K, W)
        active = relu(choices)
        made = counts[:, :, None].to(active.dtype) @ active / scorer.features.n_slots
        common = self._common[:, None, None] + scorer.all_choices(active.mean(2, keepdim=True))
        return self._scores(choices, (common + scorer.made(made))[:, :, 0] + of_slots, pairs)
