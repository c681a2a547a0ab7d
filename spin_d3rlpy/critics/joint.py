"""Critics of whole actions: Q(s, a) of the state and the sum of what each choice adds.

Axes: `B` states, `A` actions of each state, `N` slots, `K` most choices of a slot, `S` all choices,
`W` width of the sums, `V` width of what a choice adds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, Self, cast

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from d3rlpy.types import TorchObservation
from torch import nn
from torch.nn.functional import embedding, embedding_bag, linear, relu

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.asm.entities import (
    COUNT_FEATURES,
    ENTRIES_AT_ONCE,
    EntityFeatures,
    count_choices,
    encoder_of_choices,
    encoder_of_objects,
    linear_of,
)
from spin_d3rlpy.critics.base import ActionCritic, Gammas, ReturnScale
from spin_d3rlpy.critics.fatal_ends import are_fatal, bound_of_fatal_ends
from spin_d3rlpy.critics.return_bins import ReturnBins, careful_mean, mean_with_fatal_ends
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast import Dropout
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.images import behind_images
from spin_d3rlpy.nvec import SlotLayout
from spin_envs import ActionLayout


class Output(NamedTuple):
    """The last layer of the values by one discount, in units of returns.

    Attributes:
        weight: of one value `(1, H)`, or of the logits of M bins of returns `(M, H)`, before which
            there can be one of fatal ends.
        bias: `(1,)` or `(M,)`.
        bins: returns of each bin, `(M,)`; None where the layer gives a value.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    bins: torch.Tensor | None


class Moves(NamedTuple):
    """Moves from actions of several states. One slot changes its choice, or two exchange theirs.

    Attributes:
        rows: of which state each move is, `(R,)`.
        slots: the same slot twice, or those that exchange, `(R, 2)`.
        choices: their new choices, `(R, 2)`.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    choices: torch.Tensor

    def of(self, some: torch.Tensor) -> Moves:
        """Returns some of the moves, by their numbers."""
        return Moves(self.rows[some], self.slots[some], self.choices[some])

    def of_each(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns actions `(R, N)` after each move alone from actions `(B, N)`."""
        return actions[self.rows].scatter(1, self.slots, self.choices)

    def made(self, actions: torch.Tensor, is_made: torch.Tensor) -> torch.Tensor:
        """Returns actions `(B, N)` after those that are made, bool `(R,)`, of different slots."""
        places = self.rows[:, None], self.slots
        choices = torch.where(is_made[:, None], self.choices, actions[places])
        return actions.index_put(places, choices)


class ActionSums:
    """What whole actions add up to in states, `(..., W)`; tensors in its fields are of states."""

    @abstractmethod
    def total(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns the sums `([A,] B, W)` of actions `([A,] B, N)`."""

    @abstractmethod
    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        """Returns by how much moves from actions `(B, N)` change the sums, `(R, W)`.

        Changes by moves of different slots add up; where choices touch, if they also take and leave
        different choices.
        """

    def of(self, rows: torch.Tensor) -> Self:
        """Returns what actions add up to in some of the states, `(R,)`."""
        chosen = copy(self)
        for name, field in vars(self).items():
            if isinstance(field, torch.Tensor):
                setattr(chosen, name, field[rows])
        return chosen


class ActionEncoder(nn.Module):
    """Maps states to what actions add up to there."""

    # Whether what slots make of a choice together has a value of its own, and whether it matters
    # which of two slots makes which of two choices.
    choices_touch = True
    gains_by_exchanges = True
    tells_fatal_ends = False  # whether there are `fatal_log_odds` and `are_survived`

    @abstractmethod
    def open(self, observations: torch.Tensor) -> ActionSums:
        """Returns the sums of actions in observations `(B, obs)`."""

    def seen(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns what all critics see of the sums `(..., W)`."""
        return sums

    def encoded(self, seen: torch.Tensor) -> torch.Tensor:
        """Returns what a network gets of that."""
        return seen

    def fatal_log_odds(self, seen: torch.Tensor) -> torch.Tensor:
        """Returns the log-odds `(R,)` that actions end an episode fatally, by what is seen."""
        raise NotImplementedError

    def are_survived(self, seen: torch.Tensor) -> torch.Tensor:
        """Returns which actions lead where the log has been and gone on, bool `(R,)`."""
        raise NotImplementedError


class ChoicesOfSlots(ActionEncoder):
    """Adds up one embedding per slot and choice, `(S, W)`: nothing is shared between slots."""

    choices_touch = False
    gains_by_exchanges = False  # a choice is another thing in each slot

    def __init__(self, observation_size: int, slot_layout: SlotLayout, width: int) -> None:
        super().__init__()
        self.slot_layout = slot_layout
        self.state = behind_images(observation_size, lambda size: nn.Linear(size, width))
        self.table = nn.Parameter(torch.randn(slot_layout.total, width) * slot_layout.n_slots**-0.5)

    def open(self, observations: torch.Tensor) -> ActionSums:
        return _SumsOfSlots(self, self.state(observations))


class _SumsOfSlots(ActionSums):
    def __init__(self, encoder: ChoicesOfSlots, state: torch.Tensor) -> None:
        self._encoder, self._state = encoder, state

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        rows, table = self._encoder.slot_layout.positions(actions), self._encoder.table
        total: torch.Tensor
        if is_exporting():  # in an ONNX file `embedding_bag` is a loop over rows
            total = self._state + embedding(rows, table).sum(-2)
            return total
        summed = embedding_bag(rows.flatten(0, -2), table, mode="sum")
        total = self._state + summed.unflatten(0, actions.shape[:-1])
        return total

    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        """See `ActionSums`; of moves of one slot."""
        slot, table = moves.slots[:, 0], self._encoder.table
        first = self._encoder.slot_layout.offsets[slot]
        before = actions[moves.rows, slot]
        return embedding(first + moves.choices[:, 0], table) - embedding(first + before, table)


class SharedChoices(ActionEncoder):
    """Adds up one embedding per choice, `(K, W)`, wherever it is made, and one for its presence.

    For slots that choose among the same things, such as the places of a page: what is learned of an
    item in one place holds in all others.
    """

    gains_by_exchanges = False

    def __init__(self, observation_size: int, slot_layout: SlotLayout, width: int) -> None:
        super().__init__()
        self.n_choices = slot_layout.max_choices
        scale = slot_layout.n_slots**-0.5
        self.state = behind_images(observation_size, lambda size: nn.Linear(size, width))
        self.table = nn.Parameter(torch.randn(self.n_choices, width) * scale)
        self.presence = nn.Parameter(torch.randn(self.n_choices, width) * scale)

    def open(self, observations: torch.Tensor) -> ActionSums:
        return _SumsOfShared(self, self.state(observations))


class _SumsOfShared(ActionSums):
    def __init__(self, encoder: SharedChoices, state: torch.Tensor) -> None:
        self._encoder, self._state = encoder, state

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        counts = count_choices(actions, self._encoder.n_choices)
        present = (counts > 0.0).to(counts.dtype)
        return self._state + counts @ self._encoder.table + present @ self._encoder.presence

    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        """See `ActionSums`; of moves of one slot."""
        table, presence = self._encoder.table, self._encoder.presence
        counts = count_choices(actions, self._encoder.n_choices)
        # What a state's choices bring and its slots take away: fewer rows than there are moves.
        comes = (counts == 0.0)[..., None].to(table.dtype)  # (B, K, 1)
        leaves = (counts.gather(1, actions) == 1.0)[..., None].to(table.dtype)  # (B, N, 1)
        won = table + comes * presence
        lost = embedding(actions, table) + leaves * embedding(actions, presence)
        return won[moves.rows, moves.choices[:, 0]] - lost[moves.rows, moves.slots[:, 0]]


class EntityChoices(ActionEncoder):
    """Adds up, over choices, what the slots that made a choice are together.

    A pair of a slot and its choice is encoded by the features of both and their differences; what
    several slots bring to one choice is added up before a nonlinearity, so that a choice made twice
    can be worth less than two. Weights do not depend on the number of slots and choices.
    """

    def __init__(
        self,
        observation_size: int,
        slot_layout: SlotLayout,
        width: int,
        layout: ActionLayout,
        pair_width: int = 32,
    ) -> None:
        super().__init__()
        features = EntityFeatures(observation_size, slot_layout.nvec, layout)
        self.features = features
        self.slot = linear_of(features.slot_size, pair_width)
        self.choice = encoder_of_choices(features, pair_width)
        self.distance = linear_of(features.pair_size, pair_width, bias=False)
        self.context = linear_of(features.context_size, pair_width, bias=False)
        self.gathered = nn.Linear(pair_width, pair_width)
        self.gathered_choice = encoder_of_choices(features, pair_width)
        self.gathered_context = linear_of(features.context_size, pair_width, bias=False)
        self.count = nn.Linear(COUNT_FEATURES, pair_width, bias=False)
        self.out = nn.Linear(pair_width, width, bias=False)
        self.state = linear_of(features.context_size, width)
        self.slots_of_state = nn.Linear(pair_width, width, bias=False)

    def open(self, observations: torch.Tensor) -> ActionSums:
        return _SumsOfEntities(self, observations)


class _SumsOfEntities(ActionSums):
    def __init__(self, encoder: EntityChoices, observations: torch.Tensor) -> None:
        self._encoder, features = encoder, encoder.features
        self._n_choices = features.n_choices
        self._last: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._slot_features = features.slots(observations)  # (B, N, f)
        self._choice_features = features.choices(observations)  # (B, K, g)
        self._pair_features = features.pairs(observations)  # (B, N, K, p)
        context = features.context(observations)
        self._slots = encoder.slot(self._slot_features) + encoder.context(context)[:, None]
        self._choices = encoder.choice(self._choice_features)  # (B, K, V)
        self._gathered = (
            encoder.gathered_choice(self._choice_features)
            + encoder.gathered_context(context)[:, None]
        )  # (B, K, V)
        self._state = encoder.state(context) + encoder.slots_of_state(relu(self._slots).mean(1))

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        at_once = max(1, ENTRIES_AT_ONCE // max(1, self._choices.numel()))
        is_recorded = torch.is_grad_enabled() or is_exporting() or actions.device.type != "cpu"
        if is_recorded or actions.dim() == 2 or len(actions) <= at_once:
            return self._total(actions)
        # A few actions of each state at a time, so that what they pass through stays in the cache.
        return torch.cat([self._total(some) for some in actions.split(at_once)])

    def _total(self, actions: torch.Tensor) -> torch.Tensor:
        gathered, counts = self._gather(actions)
        worth = self._worth(gathered, counts, self._gathered).sum(-2)
        total: torch.Tensor = self._state + self._encoder.out(worth)
        return total

    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        """See `ActionSums`; computes the two choices that a move touches alone."""
        gathered, counts = self._gather(actions)
        row, slots = moves.rows[:, None], moves.slots
        # The first slot goes from one choice to the other; if there is another slot, it comes back.
        touched = torch.cat([actions[row, slots[:, :1]], moves.choices[:, :1]], dim=1)  # (R, 2)
        pairs = self._pairs_at(row, slots, touched)  # (R, 2 slots, 2 choices, V)
        comes_back = (slots[:, :1] != slots[:, 1:]).to(counts.dtype)  # (R, 1)
        change = pairs[:, 0] - comes_back[..., None] * pairs[:, 1]
        sign = torch.tensor([-1.0, 1.0], device=counts.device)
        before, n_before = gathered[row, touched], counts[row, touched]
        after = before + sign[:, None] * change
        n_after = n_before + sign * (1.0 - comes_back)
        worth = self._worth(
            torch.stack([before, after]),
            torch.stack([n_before, n_after]),
            self._gathered[row, touched],
        ).sum(2)  # (2, R, V)
        changes: torch.Tensor = self._encoder.out(worth[1] - worth[0])
        return changes

    def _pairs_at(
        self, row: torch.Tensor, slots: torch.Tensor, choices: torch.Tensor
    ) -> torch.Tensor:
        """Encodes slots `(R, S)` with each of choices `(R, C)` in rows `(R, 1)`, `(R, S, C, V)`."""
        x = self._slots[row, slots][:, :, None] + self._choices[row, choices][:, None]
        if self._encoder.features.pair_size:
            of_pairs = self._encoder.features.of_pairs(
                self._slot_features[row, slots][:, :, None],
                self._choice_features[row, choices][:, None],
                self._pair_features[row[..., None], slots[..., None], choices[:, None]],
            )
            x = x + self._encoder.distance(of_pairs)
        return relu(x)

    def _gather(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what slots bring to each choice, `(..., K, V)`, and how many, `(..., K)`.

        What it returned last is kept: a search asks for the same actions again.
        """
        if self._last is not None and self._last[0] is actions:
            return self._last[1], self._last[2]
        x = self._slots + _rows_of(self._choices, actions)
        if self._encoder.features.pair_size:
            chosen = _rows_of(self._choice_features, actions)  # (..., N, g)
            of_pairs = self._encoder.features.of_pairs(
                self._slot_features.expand(*chosen.shape[:-1], -1), chosen, self._observed(actions)
            )
            x = x + self._encoder.distance(of_pairs)
        pairs = relu(x)
        shape = *actions.shape[:-1], self._n_choices, pairs.shape[-1]
        index = actions[..., None].expand_as(pairs)
        gathered = torch.zeros(shape, dtype=pairs.dtype, device=pairs.device)
        gathered = gathered.scatter_add(-2, index, pairs)
        counts = count_choices(actions, self._n_choices)
        if not torch.is_grad_enabled():
            self._last = actions, gathered, counts
        return gathered, counts

    def _observed(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns the observed features of slots with their choices, `(..., N, p)`."""
        table = self._pair_features.expand(*actions.shape, *self._pair_features.shape[-2:])
        at = actions[..., None, None].expand(*actions.shape, 1, table.shape[-1])
        return table.gather(-2, at)[..., 0, :]

    def _worth(
        self, gathered: torch.Tensor, counts: torch.Tensor, choices: torch.Tensor
    ) -> torch.Tensor:
        """Returns what choices, by their features, are worth with those slots, `(..., K, V)`."""
        seen = torch.stack([counts, (counts > 0.0).to(counts.dtype)], dim=-1)
        encoder = self._encoder
        return relu(encoder.gathered(gathered) + choices + encoder.count(seen))


class FeaturesOfSlots(ActionEncoder):
    """Adds up what each slot is with its choice, by its features; choices have none.

    Weights do not depend on the number of slots.
    """

    choices_touch = False
    gains_by_exchanges = False  # as two changes would

    def __init__(
        self,
        observation_size: int,
        slot_layout: SlotLayout,
        width: int,
        layout: ActionLayout,
        pair_width: int = 64,
    ) -> None:
        super().__init__()
        features = EntityFeatures(observation_size, slot_layout.nvec, layout)
        self.features = features
        self.slot = linear_of(features.slot_size, pair_width)
        self.context = linear_of(features.context_size, pair_width, bias=False)
        self.objects = encoder_of_objects(features, pair_width)
        self.choice = nn.Parameter(torch.randn(features.n_choices, pair_width))
        self.out = nn.Linear(pair_width, width, bias=False)
        self.state = linear_of(features.context_size, width)
        self.slots_of_state = nn.Linear(pair_width, width, bias=False)

    def open(self, observations: torch.Tensor) -> ActionSums:
        return _SumsOfFeatures(self, observations)


class _SumsOfFeatures(ActionSums):
    def __init__(self, encoder: FeaturesOfSlots, observations: torch.Tensor) -> None:
        self._encoder, features = encoder, encoder.features
        context = features.context(observations)
        slots = encoder.slot(features.slots(observations)) + encoder.objects(observations)
        self._slots = slots + encoder.context(context)[:, None]  # (B, N, V)
        self._state = encoder.state(context) + encoder.slots_of_state(relu(self._slots).mean(1))

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        with_choice = relu(self._slots + embedding(actions, self._encoder.choice))
        total: torch.Tensor = self._state + self._encoder.out(with_choice.sum(-2))
        return total

    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        """See `ActionSums`; of moves of one slot."""
        row, slot, table = moves.rows, moves.slots[:, 0], self._encoder.choice
        mine = self._slots[row, slot]  # (R, V)
        won = relu(mine + embedding(moves.choices[:, 0], table))
        lost = relu(mine + embedding(actions[row, slot], table))
        changes: torch.Tensor = self._encoder.out(won - lost)
        return changes


def _rows_of(table: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Picks rows of `(B, K, D)` by actions `([A,] B, N)`: `([A,] B, N, D)`."""
    expanded = table.expand(*actions.shape[:-1], *table.shape[-2:])
    return expanded.gather(-2, actions[..., None].expand(*actions.shape, table.shape[-1]))


def encoder_of_actions(
    observation_size: int, slot_layout: SlotLayout, width: int, layout: ActionLayout | None
) -> ActionEncoder:
    """Returns a new encoder of states and whole actions by what is known of slots and choices."""
    if layout is None or not layout.shared_choices:
        return ChoicesOfSlots(observation_size, slot_layout, width)
    if not layout.has_choice_features and layout.has_features:
        return FeaturesOfSlots(observation_size, slot_layout, width, layout)
    if layout.slot_columns or layout.choice_columns or layout.pair_columns:
        return EntityChoices(observation_size, slot_layout, width, layout)
    return SharedChoices(observation_size, slot_layout, width)


class JointQFunction(nn.Module):
    """Maps observations and whole actions to values: `head(encoder(relu(norm(sums))))`.

    In training, `drop_out` leaves out a share of both hidden layers.

    Args:
        encoder_factory: d3rlpy factory of the hidden layers on the sums, which are as wide as its
            output.
        actions: what states and actions add up to.
        width: of the sums.
        n_discounts: discounts (G) by which actions are valued.
        n_rewards: rewards (R) that are valued apart. There is an output for each discount with each
            reward, the first discount's first; `values` are weighted sums of R outputs.
        n_bins: bins (M) of the distribution of returns that is learned in place of their mean, for
            one reward; 0 learns the mean.
        dropout: share of both hidden layers that is left out in training.
    """

    acts_by: torch.Tensor  # (1,): which discount `values` are by
    reward_weights: torch.Tensor | None  # (R,): of several rewards; None of one
    covariance: torch.Tensor | None  # (R, R): of their returns by the first discount

    def __init__(
        self,
        encoder_factory: EncoderFactory,
        actions: ActionEncoder,
        width: int,
        n_discounts: int = 1,
        n_rewards: int = 1,
        n_bins: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.actions = actions
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.encoder = encoder_factory.create((width,))
        n_outputs, has_several = n_discounts * n_rewards, n_rewards > 1
        head_width = compute_output_size([(width,)], self.encoder)
        self.scale = ReturnScale(n_outputs)
        has_fatal = n_bins > 0 and actions.tells_fatal_ends
        self.bins = ReturnBins(n_outputs, n_bins, has_fatal) if n_bins else None
        n_logits = 1 if self.bins is None else self.bins.n_logits
        self.head = nn.Linear(head_width, n_outputs * n_logits)
        if has_fatal:  # training starts from the given log-odds
            nn.init.zeros_(self.head.weight[::n_logits])
            nn.init.zeros_(self.head.bias[::n_logits])
        self.register_buffer("acts_by", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("reward_weights", torch.ones(n_rewards) if has_several else None)
        covariance = torch.eye(n_rewards) if has_several else None
        self.register_buffer("covariance", covariance)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns values `([A,] B)` of observations `(B, obs)` and actions `([A,] B, N)`."""
        return self.values(self.open(observations).total(actions))

    def open(self, observations: torch.Tensor) -> ActionSums:
        """Returns the sums of actions in observations `(B, obs)`."""
        sums: ActionSums = self.actions.open(observations)
        return sums

    def values(self, sums: torch.Tensor, output: Output | None = None) -> torch.Tensor:
        """Returns the values `(...)` of sums `(..., W)`.

        Args:
            sums: of states and actions.
            output: of the discount that values are by; by default the one that the function acts
                by.
        """
        weight, bias, bins = self.output() if output is None else output
        seen = self.actions.seen(sums)
        hidden = self._hidden(seen)
        outputs = in_float32(lambda x: linear(x, weight, bias), hidden)
        if bins is None:
            values = outputs[:, 0]
        elif self.actions.tells_fatal_ends:
            log_odds, survived = self.actions.fatal_log_odds(seen), self.actions.are_survived(seen)
            logits = self._with_log_odds(outputs, log_odds)
            values = mean_with_fatal_ends(logits, log_odds, survived, bins)
        else:
            values = careful_mean(outputs, bins)
        of_actions: torch.Tensor = values.unflatten(0, sums.shape[:-1])
        return of_actions

    def output(self, by: torch.Tensor | None = None) -> Output:
        """Returns the last layer of one discount, `(1,)`, in units of returns.

        A search asks once for it, and values thousands of actions by it. Of several rewards it is
        the layer of their weighted sum, so that a search costs the same.
        """
        by, weights = self.acts_by if by is None else by, self.reward_weights
        if self.bins is not None:
            of_bins = (-1, self.bins.n_logits)
            weight = self.head.weight.unflatten(0, of_bins).index_select(0, by)[0]
            bias = self.head.bias.unflatten(0, of_bins).index_select(0, by)[0]
            middles = self.scale.restore(self.bins.middles).index_select(0, by)[0]
            return Output(weight, bias, middles)
        if weights is not None:
            by = by * len(weights) + torch.arange(len(weights), device=by.device)
        std, mean = self.scale.std.index_select(0, by), self.scale.mean.index_select(0, by)
        weight = self.head.weight.index_select(0, by) * std[:, None]
        bias = self.head.bias.index_select(0, by) * std + mean
        if weights is None:
            return Output(weight, bias, None)
        weight = (weights[:, None] * weight).sum(0, keepdim=True)
        bias = (weights * bias).sum(0, keepdim=True)
        return Output(weight, bias, None)

    def standardized(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns all outputs, as `ReturnScale` standardizes them, `(G * R, B)`."""
        if self.bins is not None:
            return self.bins.means(self.logits(sums))
        values: torch.Tensor = in_float32(self.head, self._hidden(self.actions.seen(sums))).T
        return values

    def logits(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns the logits of distributions of returns, `(B, G * R * n_logits)`."""
        seen = self.actions.seen(sums)
        logits: torch.Tensor = in_float32(self.head, self._hidden(seen))
        if not self.actions.tells_fatal_ends:
            return logits
        return self._with_log_odds(logits, self.actions.fatal_log_odds(seen))

    def _with_log_odds(self, logits: torch.Tensor, log_odds: torch.Tensor) -> torch.Tensor:
        """Adds log-odds `(R,)` of fatal ends to their logits, of `(R, n * n_logits)`."""
        assert self.bins is not None
        of_outputs = logits.unflatten(1, (-1, self.bins.n_logits))
        is_fatal = torch.arange(self.bins.n_logits, device=logits.device) == 0
        # Logits of 0 make a fatal end as likely as each of M bins.
        added = (log_odds + math.log(self.bins.n_bins))[:, None, None] * is_fatal
        with_odds: torch.Tensor = (of_outputs + added).flatten(1)
        return with_odds

    def _hidden(self, seen: torch.Tensor) -> torch.Tensor:
        first = self.dropout(relu(self.norm(self.actions.encoded(seen))).flatten(0, -2))
        hidden: torch.Tensor = self.dropout(self.encoder(first))
        return hidden


class JointCritic(ActionCritic):
    """An ensemble of E functions `Q(s, a)`, which can value how choices go together.

    Args:
        observation_shape: shape of one observation.
        encoder_factory: d3rlpy factory of each member's hidden layers after the first one.
        nvec: number of choices of each slot.
        n_critics: number of members (E).
        layout: what slots and choices are. Where both have features, pairs are encoded by them, and
            where slots alone have, slots with an embedding of their choice; where slots share their
            choices, a choice has one embedding for all slots.
        n_discounts: discounts (G) by which actions are valued.
        n_rewards: rewards (R) that are valued apart; `weigh` says how they are added up.
        n_bins: of distributions of returns, as in `JointQFunction`.
        create_encoder: from the width of a member's first layer to what encodes states and actions
            in place of what `layout` says.
        dropout: of hidden layers, of every other member.
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        encoder_factory: EncoderFactory,
        nvec: Sequence[int],
        n_critics: int = 2,
        layout: ActionLayout | None = None,
        n_discounts: int = 1,
        n_rewards: int = 1,
        n_bins: int = 0,
        create_encoder: Callable[[int], ActionEncoder] | None = None,
        dropout: float = 0.0,
    ) -> None:
        slots, size = SlotLayout(nvec), observation_shape[0]
        # The first layer is as wide as what follows it.
        width = compute_output_size([(1,)], encoder_factory.create((1,)))

        def create_actions() -> ActionEncoder:
            if create_encoder is not None:
                return create_encoder(width)
            return encoder_of_actions(size, slots, width, layout)

        super().__init__(
            JointQFunction(
                encoder_factory,
                create_actions(),
                width,
                n_discounts,
                n_rewards,
                n_bins,
                dropout=dropout if number % 2 == 0 else 0.0,
            )
            for number in range(n_critics)
        )

    def fit_scale(self, buffer: DeviceReplayBuffer, rewards: torch.Tensor, gammas: Gammas) -> None:
        by_reward = [buffer.completed_returns(reward, gammas) for reward in rewards]
        returns = torch.stack(by_reward, dim=1)  # (G, R, n)
        bound = bound_of_fatal_ends(rewards[0], buffer.terminals)
        fatal = are_fatal(rewards[0], buffer.terminals, bound)
        for q in self.members:
            q.scale.fit(returns.flatten(0, 1))
            if q.bins is not None:
                standardized = q.scale.standardize(returns.flatten(0, 1))
                q.bins.fit(standardized, fatal if q.bins.has_fatal else None)
            if q.covariance is not None:
                q.covariance.copy_(torch.cov(returns[0]))

    def drop_out(self, rate: float) -> None:
        """Leaves out this share of the hidden layers in steps of training; 0 nothing.

        Srivastava et al., Dropout, 2014.
        """
        for q in self.members:
            q.dropout.p = rate

    def weigh(self, weights: Sequence[float]) -> None:
        """Makes `q_values` weighted sums of the values by R rewards."""
        for q in self.members:
            assert q.reward_weights is not None
            q.reward_weights.copy_(torch.tensor(weights))

    @property
    def spread(self) -> float:
        first = self.members[0]
        weights, covariance = first.reward_weights, first.covariance
        if weights is None or covariance is None:
            return self.scale.spread
        variance = float(weights @ covariance @ weights)
        return math.sqrt(max(0.0, variance))

    @property
    def members(self) -> list[JointQFunction]:
        """The E functions."""
        return cast("list[JointQFunction]", list(self))

    @property
    def scale(self) -> ReturnScale:
        return self.members[0].scale

    def q_values(
        self, slot_layout: SlotLayout, observations: TorchObservation, actions: torch.Tensor
    ) -> torch.Tensor:
        assert isinstance(observations, torch.Tensor)
        values: Any = [q(observations, actions.long()) for q in self.members]
        return torch.stack(values)

    def values_by(
        self,
        discount: int,
        slot_layout: SlotLayout,
        observations: torch.Tensor,
        actions: torch.Tensor,
    ) -> torch.Tensor:
        by = torch.tensor([discount], device=observations.device)
        values = [
            q.values(q.open(observations).total(actions.long()), q.output(by)) for q in self.members
        ]
        return torch.stack(values)

    def predictions(
        self, slot_layout: SlotLayout, observations: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """Returns standardized values `(E, G * R, B)`, with bins logits `(E, B, G * M)`."""
        predictions = []
        for q in self.members:
            total = q.open(observations).total(actions.long())
            predictions.append(q.standardized(total) if q.bins is None else q.logits(total))
        return torch.stack(predictions)

    def means(self, predictions: torch.Tensor) -> torch.Tensor:
        bins = self.members[0].bins
        if bins is None:
            return predictions
        return torch.stack([bins.means(logits) for logits in predictions])

    def loss(
        self,
        predictions: torch.Tensor,
        targets: torch.Tensor,
        are_fatal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        bins = self.members[0].bins
        if bins is None:
            return super().loss(predictions, targets)
        losses = [bins.cross_entropy(logits, targets, are_fatal) for logits in predictions]
        return torch.stack(losses).sum()

    @property
    def acts_by(self) -> int:
        """Number of the discount that `q_values` are by."""
        return int(self.members[0].acts_by)

    def act_by(self, discount: int) -> None:
        for q in self.members:
            q.acts_by.fill_(discount)
