"""The Action Structure Model (ASM), bottom-up: attention, block, trunk, heads, model.

Axes: `B` batch, `M` state tokens, `N` slots, `T = M + N` tokens, `D` width, `H`
heads, `K` most choices of a slot, `S = sum(nvec)`. This is the paper's network; `spin_d3rlpy.fast`
has its fast equivalent. Policies use it with queries in place of slot embeddings.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn.functional import embedding, gelu, linear

from spin_d3rlpy import fast
from spin_d3rlpy.asm import sampling
from spin_d3rlpy.asm.conditions import ArrayLike
from spin_d3rlpy.asm.dropout import relu_and_dropout
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.rules import OPEN
from spin_d3rlpy.asm.scaling import scaled
from spin_d3rlpy.asm.scorers import EntityBySlot, Scorer, create_scorer, score_all
from spin_d3rlpy.asm.value_codes import ValueCodes
from spin_d3rlpy.errors import InvalidObservationError, no_transformer, require_fields
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import RowSize, encode_images, image_encoder, of_numbers
from spin_d3rlpy.nvec import SlotLayout, Slots, replace_slot, rows_of

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass()
class BlockSizes:
    """Sizes that all our Transformers have; their configs are subclasses.

    Args:
        width: of a token.
        n_blocks: Transformer blocks.
        n_heads: attention heads; must divide `width`.
    """

    width: int = 256
    n_blocks: int = 3
    n_heads: int = 4

    def __post_init__(self) -> None:
        check_fields(self)
        divides = self.width % self.n_heads == 0
        require_fields(self, n_heads=(divides, f"to divide width={self.width}"))


@dataclasses.dataclass()
class TransformerConfig(BlockSizes):
    """Sizes of the trunk and heads; the defaults are those of SPIN's published code.

    Args:
        width: token width (the paper's d).
        n_blocks: Transformer blocks.
        n_heads: attention heads; must divide `width`.
        n_state_tokens: tokens the state is encoded into (M).
        ffn_multiplier: hidden width of the feed-forward layers, in units of `width`.
        head_hidden: hidden width of each slot's prediction head.
        dropout: after attention's output, in the feed-forward layers and in the heads.
        attention_dropout: on attention weights.
    """

    n_state_tokens: int = 1
    ffn_multiplier: int = 2
    head_hidden: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def entries_a_row(self, n_slots: int) -> int:
        """Numbers in the largest array of one row of a batch."""
        # Queries, keys and values of a token, or what is hidden in its feed-forward layers.
        entries_a_token = max(3, self.ffn_multiplier) * self.width
        return (self.n_state_tokens + n_slots) * entries_a_token


@dataclasses.dataclass()
class MLPConfig:
    """Sizes of an attention-free trunk.

    Args:
        width: of each hidden layer.
        n_layers: number of hidden layers.
        value_codes: whether the first layer also sees, one-hot, which of the values that recur in
            the data a column has, and how far it is between their quantiles (`asm.value_codes`).
            Not of images.
    """

    width: int = 256
    n_layers: int = 2
    value_codes: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def entries_a_row(self, n_slots: int) -> int:
        """Numbers in the largest array of one row of a batch."""
        return self.width


StructureConfig: TypeAlias = TransformerConfig | MLPConfig | EntityConfig
ARCHITECTURES: dict[str, type[StructureConfig]] = {
    "transformer": TransformerConfig,
    "mlp": MLPConfig,
    "entities": EntityConfig,
}


class Attention(nn.Module):
    """Multi-head attention among all tokens, with biased projections."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d = config.width
        self.n_heads = config.n_heads
        self.query = nn.Linear(d, d)
        self.key_value = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, d)
        self.dropout = fast.Dropout(config.attention_dropout)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Mixes values of the context `(B, T, D)` by queries of `(B, T, D)`: `(B, T, D)`."""
        projected = self.query(x), *self.key_value(context).chunk(2, dim=-1)
        # (B, T, D) to (B, H, T, D/H)
        q, k, v = (y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for y in projected)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (B, H, T, T)
        mixed: torch.Tensor = self.out((self.dropout(weights) @ v).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """A pre-LN block with separate norms for queries and for keys and values."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, hidden = config.width, config.ffn_multiplier * config.width
        self.query_norm = nn.LayerNorm(d)
        self.context_norm = nn.LayerNorm(d)
        self.attention = Attention(config)
        self.dropout = fast.Dropout(config.dropout)
        self.ffn = nn.Sequential(
            nn.LayerNorm(d),
            nn.Linear(d, hidden),
            nn.GELU(),
            fast.Dropout(config.dropout),
            nn.Linear(hidden, d),
            fast.Dropout(config.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps tokens `(B, T, D)` to `(B, T, D)`."""
        x = x + self.dropout(self.attention(self.query_norm(x), self.context_norm(x)))
        x = x + self.ffn(x)
        return x


class SlotTransformer(nn.Module):
    """The trunk: N slot tokens attend to M tokens of the encoded state and to each other.

    There are no position codes: permuting the slot tokens permutes the output.
    """

    def __init__(self, observation_size: int, config: TransformerConfig) -> None:
        super().__init__()
        d, m = config.width, config.n_state_tokens
        self.images, encoded_size = image_encoder(observation_size)
        self.state_encoder = nn.Sequential(
            nn.Linear(encoded_size, 2 * d), nn.GELU(), nn.Linear(2 * d, m * d)
        )
        self.config, self.n_state_tokens = config, m
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))

    def forward(
        self,
        observations: torch.Tensor,
        table: torch.Tensor,
        ids: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns slot features `(B, N, D)`, or `(C, N, D)` of selected `rows`.

        Args:
            observations: `(B, obs)`.
            table: `(R, D)` tokens; or `(B, N, D)`, each row its own, without `ids`.
            ids: `(B, N)` rows of the table; None: every row of the batch has all of it (R = N).
            rows: `(C, N)`: for slot i, only the features in rows `rows[:, i]` of the batch.
        """
        observations = self.images(observations)
        if fast.is_on():
            return fast.transformer.forward(self, observations, table, ids, rows)
        state = self.state_encoder(observations).unflatten(-1, (self.n_state_tokens, -1))
        slots = table.expand(state.shape[0], -1, -1) if ids is None else embedding(ids, table)
        x = torch.cat([state, slots], dim=1)  # (B, M + N, D)
        for block in self.blocks:
            x = block(x)
        features = x[:, self.n_state_tokens :]
        if rows is None:
            return features
        return features.gather(0, rows[..., None].expand(-1, -1, features.shape[-1]))


class PerSlotLogits(nn.Module):
    """Base class of layers with linear maps `D -> m_i`, one per slot, in one batched product.

    Slots with fewer than K choices have columns that are computed and dropped.
    """

    keep: torch.Tensor  # (S,) columns that belong to choices

    def __init__(self, slot_layout: SlotLayout) -> None:
        super().__init__()
        self.is_uniform = slot_layout.is_uniform
        self.register_buffer(
            "keep", (~slot_layout.padding).flatten().nonzero()[:, 0], persistent=False
        )

    def flat_logits(
        self, features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Maps features `(N, B, D)` to logits of all choices, flat `(B, S)`.

        Weights are `(N, D, K)` and biases `(N, 1, K)`.
        """
        logits = in_float32(lambda x: torch.baddbmm(bias, x, weight), features)
        logits = logits.transpose(0, 1).flatten(1)
        return logits if self.is_uniform else logits[:, self.keep]


class SlotHeads(PerSlotLogits):
    """One small MLP per slot, `D -> hidden -> m_i`, all computed in two batched products."""

    def __init__(self, nvec: Sequence[int], config: TransformerConfig) -> None:
        slot_layout = SlotLayout(nvec)
        super().__init__(slot_layout)
        n, k, d, hidden = (
            slot_layout.n_slots,
            slot_layout.max_choices,
            config.width,
            config.head_hidden,
        )
        self.dropout = fast.Dropout(config.dropout)
        self.weight1 = nn.Parameter(torch.empty(n, d, hidden).uniform_(-(d**-0.5), d**-0.5))
        self.bias1 = nn.Parameter(torch.empty(n, 1, hidden).uniform_(-(d**-0.5), d**-0.5))
        bound = hidden**-0.5
        self.weight2 = nn.Parameter(torch.empty(n, hidden, k).uniform_(-bound, bound))
        self.bias2 = nn.Parameter(torch.empty(n, 1, k).uniform_(-bound, bound))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `(B, N, D)`, or `(B, 1, D)` for all slots, to logits, flat `(B, S)`."""
        features = features.expand(-1, self.weight1.shape[0], -1)
        hidden = gelu(torch.baddbmm(self.bias1, features.transpose(0, 1), self.weight1))
        hidden = self.dropout(hidden)
        return self.flat_logits(hidden, self.weight2, self.bias2)


class SlotMLP(nn.Module):
    """The trunk without attention: LayerNorm and ReLU over the state and the visible choices.

    The input is `[state, one-hot of visible choices (zeros where masked), mask bits]`. The first
    layer's weights of choices and mask bits are the rows of the ASM's token table.
    """

    def __init__(self, observation_size: int, config: MLPConfig) -> None:
        super().__init__()
        d = config.width
        self.images, self.encoded_size = image_encoder(observation_size)
        self.state_encoder = nn.Linear(self.encoded_size, d)
        has_codes = config.value_codes and not isinstance(observation_size, RowSize)
        self.value_codes = ValueCodes(observation_size, d) if has_codes else None
        layers: list[nn.Module] = [nn.LayerNorm(d), relu_and_dropout()]
        for _ in range(config.n_layers - 1):
            layers += [nn.Linear(d, d), nn.LayerNorm(d), relu_and_dropout()]
        self.hidden = nn.Sequential(*layers)

    def forward(
        self, observations: torch.Tensor, table: torch.Tensor, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns features of all slots, `(B, 1, D)`; arguments as in `SlotTransformer`."""
        return self.features(self.first_layer(observations, table, ids))

    def first_layer(
        self, observations: torch.Tensor, table: torch.Tensor, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the first layer's linear map `(B, D)`, to which each token adds its row."""
        state: torch.Tensor = self.state_encoder(self.images(observations))
        if self.value_codes is not None and self.value_codes.is_used:
            state = state + self.value_codes(observations)
        if ids is None:
            return state + table.sum(0)
        # Measured: for slots of few choices faster than looking up rows.
        # No `len`, which a trace takes for a constant.
        shape = ids.shape[0], table.shape[0]
        chosen = torch.zeros(shape, dtype=state.dtype, device=ids.device)
        return torch.addmm(state, chosen.scatter(1, ids, 1.0), table.to(state.dtype))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features `(B, 1, D)` of what `first_layer` gives."""
        features: torch.Tensor = self.hidden(x)[:, None]
        return features


class LinearHeads(nn.Linear):
    """One linear head per slot: `(B, 1, D)` to logits of all choices `(B, S)`."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        return in_float32(super().forward, features[:, 0])

    def some(self, features: torch.Tensor, outputs: slice) -> torch.Tensor:
        """Returns some of the logits, `(B, outputs)`."""
        return linear(features[:, 0], self.weight[outputs], self.bias[outputs])


def create_trunk(observation_size: int, config: StructureConfig) -> SlotTransformer | SlotMLP:
    """Returns an untrained trunk for a config; NoTransformerError if it describes none."""
    if isinstance(config, EntityConfig):
        raise no_transformer(config)
    if isinstance(config, MLPConfig):
        return SlotMLP(observation_size, config)
    return SlotTransformer(observation_size, config)


def create_heads(nvec: Sequence[int], config: StructureConfig) -> SlotHeads | LinearHeads:
    """Returns untrained heads for the trunk of a config; see `create_trunk`.

    Raises:
        NoTransformerError: a config without attention between slots.
    """
    if isinstance(config, EntityConfig):
        raise no_transformer(config)
    if isinstance(config, MLPConfig):
        return LinearHeads(config.width, sum(nvec))
    return SlotHeads(nvec, config)


def _of_raw(
    function: Callable[Concatenate[Any, torch.Tensor, P], T],
) -> Callable[Concatenate[ActionStructureModel, ArrayLike, P], T]:
    """Makes a function of scaled observations a method that scales them.

    Rules, of functions that take some, see them as they are.
    """
    takes_states = "states" in inspect.signature(function).parameters

    @functools.wraps(function)
    def method(
        self: ActionStructureModel,
        observations: ArrayLike,
        /,
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        inputs = self.network_input(observations)
        if takes_states and options.get("states") is None:
            states = torch.as_tensor(observations, dtype=torch.float32, device=self.device)
            options["states"] = states
        return function(self, inputs, *args, **options)

    return method


class ActionStructureModel(nn.Module):
    """Predicts each slot from the state and the others (SPIN, section 4.1).

    The input is the state and N slot tokens, each a choice or the slot's mask token; the output is
    a distribution over every slot's choices.

    Args:
        observation_size: length of an observation.
        nvec: number of choices of each slot.
        config: sizes: a `TransformerConfig` (the paper's), an `MLPConfig`, or an `EntityConfig`,
            by which slots and choices are scored by their features.
    """

    row_offsets: torch.Tensor  # (N,)
    mask_ids: torch.Tensor  # (N,): each slot's mask token, m_i

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: StructureConfig | None = None
    ) -> None:
        super().__init__()
        self.config: StructureConfig = config or TransformerConfig()
        self.observation_size = observation_size
        self.slot_layout = SlotLayout(nvec)
        self.nvec = self.slot_layout.nvec
        # How observations were scaled in pre-training (type and parameters), kept with the file.
        self.observation_scaler: dict[str, Any] | None = None
        rows = torch.tensor([m + 1 for m in self.nvec])
        self.register_buffer("row_offsets", rows.cumsum(0) - rows, persistent=False)
        self.register_buffer("mask_ids", torch.tensor(self.nvec), persistent=False)
        self.scorer: Scorer | None = None
        if isinstance(self.config, EntityConfig):
            self.scorer = create_scorer(observation_size, self.nvec, self.config)
            return
        # One table of all slots' rows; slot i's rows are its m_i choices, then its mask token.
        self.embedding = nn.Embedding(
            self.slot_layout.total + self.slot_layout.n_slots, self.config.width
        )
        self.trunk = create_trunk(observation_size, self.config)
        self.heads = create_heads(self.nvec, self.config)
        if isinstance(self.trunk, SlotMLP):  # one linear layer with the state's weights
            bound = (self.trunk.encoded_size + len(self.embedding.weight)) ** -0.5
            nn.init.uniform_(self.embedding.weight, -bound, bound)

    @property
    def transformer(self) -> SlotTransformer:
        """The trunk; an attribute only of a model with attention, otherwise NoTransformerError."""
        trunk = None if self.scorer is not None else self.trunk
        if not isinstance(trunk, SlotTransformer):
            raise no_transformer(self.config)
        return trunk

    @property
    def value_codes(self) -> ValueCodes | None:
        """Codes of columns with few values; None where the model has none."""
        trunk = None if self.scorer is not None else self.trunk
        return trunk.value_codes if isinstance(trunk, SlotMLP) else None

    def rows_per_update(self, batch_size: int) -> int:
        """Returns how many rows of a training batch of a config's size the model takes."""
        if isinstance(self.config, EntityConfig):
            return self.config.rows_per_update(batch_size, self.slot_layout.n_slots)
        return batch_size

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.mask_ids.device

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        # Python comes here after the property's error, and nn.Module would not say why.
        if name == "transformer":
            raise no_transformer(self.config)
        return super().__getattr__(name)

    @property
    def mask_embeddings(self) -> torch.Tensor:
        """Embeddings of the mask tokens, `(N, D)`."""
        return self.embedding.weight[self.row_offsets + self.mask_ids]

    def forward(
        self, observations: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns logits of every slot's choices, flat `(B, S)`, or `(C, S)` of `rows`.

        Args:
            observations: `(B, obs)`.
            tokens: `(B, N)` integers, choice `0 .. m_i - 1` or mask `m_i`.
            rows: `(C, N)`: of slot i, only the logits in rows `rows[:, i]` of the batch.
        """
        logits: torch.Tensor
        if self.scorer is not None:
            logits = score_all(self.scorer, observations, tokens).flatten(1)
            return logits if rows is None else logits.gather(0, rows[:, self.slot_layout.slot_of])
        table, ids = self.embedding.weight, tokens + self.row_offsets
        if isinstance(self.trunk, SlotMLP):
            logits = self.heads(self.trunk(observations, table, ids))
            return logits if rows is None else logits.gather(0, rows[:, self.slot_layout.slot_of])
        logits = self.heads(self.trunk(observations, table, ids, rows))
        return logits

    def slot_by_slot(self, observations: torch.Tensor) -> SlotBySlot | EntityBySlot:
        """Returns logits of slots in view of choices made, see `asm.decoding.Conditionals`."""
        if self.scorer is not None:
            return EntityBySlot(self.scorer, self.slot_layout, observations)
        return SlotBySlot(self, observations)

    def network_input(self, observations: ArrayLike) -> torch.Tensor:
        """Returns the network's input `(B, obs)`: observations scaled as in pre-training.

        Args:
            observations: `(B, obs)` as they are in the data.

        Raises:
            InvalidObservationError: observations of another length, or not finite.
            ValueError: scaling of a type that only d3rlpy knows, see `spin_d3rlpy.asm.scaling`.
        """
        x = torch.as_tensor(observations, dtype=torch.float32, device=self.device)
        if x.dim() != 2 or x.shape[1] != self.observation_size:
            raise InvalidObservationError(
                f"Expected observations of shape (B, {self.observation_size}), got shape "
                f"{tuple(x.shape)}."
            )
        if not bool(x.isfinite().all()):
            row = int((~x.isfinite()).any(1).nonzero()[0])
            raise InvalidObservationError(f"Row {row} of the observations is not finite.")
        return of_numbers(self.observation_size, self._scaled)(x)

    def _scaled(self, observations: torch.Tensor) -> torch.Tensor:
        return scaled(observations, self.observation_scaler)

    # Of observations as they are in the data.
    log_likelihood = _of_raw(sampling.log_likelihood)
    sample = _of_raw(sampling.sample)
    complete = _of_raw(sampling.complete)
    log_prob = _of_raw(sampling.log_prob)


class SlotBySlot:
    """Logits of one slot after the other, each in view of the choices made so far.

    A model without attention only adds what a choice changes in its first layer, and computes one
    slot's logits. Nothing is written in place, so that exports can follow.

    Args:
        asm: the model.
        observations: `(B, obs)`.
    """

    def __init__(self, asm: ActionStructureModel, observations: torch.Tensor) -> None:
        self._asm, self.slot_layout = asm, asm.slot_layout
        self._observations = observations = encode_images(asm, observations)
        self.tokens = asm.mask_ids.expand(observations.shape[0], -1)  # (B, N)
        self._x: torch.Tensor | None = None
        if isinstance(asm.trunk, SlotMLP):
            self._hidden = asm.mask_embeddings
            self._x = asm.trunk.first_layer(observations, self._hidden)

    def all_open(self) -> torch.Tensor:
        """Returns actions `(B, N)` without a choice, -1."""
        return torch.full_like(self.tokens, OPEN)

    def logits_given(self, actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        """Returns logits `(B, C, K)` of slots; see `LogitsInAnyOrder`."""
        asm = self._asm
        tokens = torch.where(actions == OPEN, asm.mask_ids, actions)
        if not (isinstance(asm.trunk, SlotMLP) and isinstance(slots, slice)):
            return rows_of(self.slot_layout.split(asm(self._observations, tokens)), slots)
        table, ids = asm.embedding.weight, tokens + asm.row_offsets
        x = asm.trunk.first_layer(self._observations, table, ids)
        return self._of_own_heads(asm.trunk.features(x), slots)

    def logits(self, slot: int) -> torch.Tensor:
        """Returns a slot's logits, `(B, m_i)`."""
        asm = self._asm
        start = sum(asm.nvec[:slot])
        outputs = slice(start, start + asm.nvec[slot])
        if self._x is None:
            logits: torch.Tensor = asm(self._observations, self.tokens)[:, outputs]
            return logits
        assert isinstance(asm.trunk, SlotMLP)
        assert isinstance(asm.heads, LinearHeads)
        return asm.heads.some(asm.trunk.features(self._x), outputs)

    def choose(self, slot: int, choice: torch.Tensor) -> None:
        """Takes over an open slot's choices `(B,)`."""
        if self._x is None:
            self.tokens = replace_slot(self.tokens, slot, choice)
        else:
            self._x = self._x + self._rows(slot, choice) - self._hidden[slot]

    def given_others(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits in view of all others' choices `(B, N)`, `(B, N, K)`."""
        asm, n = self._asm, self.slot_layout.n_slots
        if isinstance(asm.trunk, SlotMLP):
            return self._given_others_by_sums(asm.trunk, actions)
        itself = torch.eye(n, dtype=torch.bool, device=actions.device)
        tokens = torch.where(itself, asm.mask_ids, actions[:, None])  # (B, N, N)
        x = self._observations[:, None].expand(-1, n, -1)
        rows = torch.arange(tokens.shape[0] * n, device=actions.device).unflatten(0, (-1, n))
        return self.slot_layout.split(asm(x.flatten(0, 1), tokens.flatten(0, 1), rows))

    def _given_others_by_sums(self, trunk: SlotMLP, actions: torch.Tensor) -> torch.Tensor:
        """As `given_others`: each slot's choice is taken out of the first layer's sum."""
        asm = self._asm
        table, ids = asm.embedding.weight, actions + asm.row_offsets
        x = trunk.first_layer(self._observations, table, ids)[:, None]  # (B, 1, D)
        features = trunk.hidden(x - embedding(ids, table) + asm.mask_embeddings)  # (B, N, D)
        return self._of_own_heads(features, slice(None))

    def _of_own_heads(self, features: torch.Tensor, slots: slice) -> torch.Tensor:
        """Returns logits of slots by features `(B, C, D)`, or `(B, 1, D)` for all of them."""
        slot_layout = self.slot_layout
        # Each slot's own head alone, (C, K, D); padding repeats the last choice.
        own = slot_layout.padded_index[slots]
        weight, bias = (part[own] for part in self._asm.heads.parameters())
        logits = torch.einsum("bnd,nkd->bnk", features, weight) + bias
        if slot_layout.is_uniform:
            return logits
        return logits.masked_fill(slot_layout.padding[slots], -torch.inf)

    def of_others_choices(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits of all others' choices, which are not free, `(B, N, N)`."""
        logits = self.given_others(actions)
        others = actions[:, None].expand(-1, self.slot_layout.n_slots, -1)
        may = others < torch.tensor(self.slot_layout.nvec, device=actions.device)[:, None]
        others = others.clamp(max=logits.shape[2] - 1)
        return logits.gather(2, others).masked_fill(~may, -torch.inf)

    def _rows(self, slot: int, choice: torch.Tensor) -> torch.Tensor:
        """What choices `(B,)` add to the first layer, `(B, D)`."""
        return embedding(choice + self._asm.row_offsets[slot], self._asm.embedding.weight)
