"""The Action Structure Model (ASM), bottom-up: attention, block, trunk, heads, model.

Axes: `B` batch, `M` state tokens, `N` sub-actions (slots), `T = M + N` tokens, `D` width,
`H` heads, `K` most choices of a slot, `S = sum(nvec)`.

The SPIN and SAINT policies use the same `SlotTransformer` and `SlotHeads`; what a policy is given
in place of sub-action embeddings is in `spin_d3rlpy.policies.slot`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import embedding, gelu, layer_norm

from spin_d3rlpy.asm.attention import attend, attend_with_shared
from spin_d3rlpy.asm.dropout import Dropout, add_dropout, dropout
from spin_d3rlpy.asm.kept import Kept
from spin_d3rlpy.asm.linear import linear
from spin_d3rlpy.asm.support import LogLikelihood, complete, log_likelihood
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.precision import in_float32


@dataclasses.dataclass()
class TransformerConfig:
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

    width: int = 256
    n_blocks: int = 3
    n_heads: int = 4
    n_state_tokens: int = 1
    ffn_multiplier: int = 2
    head_hidden: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("dropout"):
                if not (isinstance(value, float | int) and 0.0 <= value < 1.0):
                    raise ValueError(f"Expected {name} in [0, 1), got {value!r}.")
            elif type(value) is not int or value < 1:
                raise ValueError(f"Expected {name} to be a number of at least 1, got {value!r}.")
        if self.width % self.n_heads:
            raise ValueError(f"Expected n_heads={self.n_heads} to divide width={self.width}.")


class Attention(nn.Module):
    """Multi-head attention among all tokens, with biased projections."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d = config.width
        self.n_heads = config.n_heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(d, d)
        self.key_value = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, d)

    def forward(self, projected: torch.Tensor) -> torch.Tensor:
        """Mixes values: `(B, T, 3D)` queries, keys and values give `(B, T, D)`.

        `out`, the last projection, is left to the caller, who may need it for some tokens only.
        """
        return attend(projected, self.n_heads, self.dropout if self.training else 0.0)

    def with_shared(self, own: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """The same for tokens of which most are the same in all rows.

        `(B, M, 3D)` of each row's own tokens and `(N, 3D)` of the others give `(B, M + N, D)`.
        """
        p = self.dropout if self.training else 0.0
        return attend_with_shared(own, shared, self.n_heads, p)


class Affine(NamedTuple):
    """Weight `(out, in)` and bias `(out,)` of a linear layer."""

    weight: torch.Tensor
    bias: torch.Tensor


def after_norm(layer: nn.Linear, norm: nn.LayerNorm) -> Affine:
    """A linear layer that takes in the scale and shift of the normalization before it."""
    weight, bias = layer.weight, layer.bias
    return Affine(weight * norm.weight, bias + weight @ norm.bias)


class BlockWeights(NamedTuple):
    """The linear layers of a block; those after a normalization contain its scale and shift."""

    projection: Affine  # to queries, keys and values
    out: Affine
    up: Affine
    down: Affine


class Block(nn.Module):
    """A pre-LN block with separate norms for queries and for keys and values.

    It comes in parts, so that what is the same in all rows (the projections of embeddings) and
    what nothing reads (outputs of some tokens) need not be computed.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, hidden = config.width, config.ffn_multiplier * config.width
        self.query_norm = nn.LayerNorm(d)
        self.context_norm = nn.LayerNorm(d)
        self.attention = Attention(config)
        self.dropout = config.dropout
        self.ffn = nn.Sequential(
            nn.LayerNorm(d),
            nn.Linear(d, hidden),
            nn.GELU(),
            Dropout(config.dropout),
            nn.Linear(hidden, d),
            Dropout(config.dropout),
        )

    def weights(self) -> BlockWeights:
        """What `project` and `finish` compute with.

        Both norms before attention standardize the same vectors and differ only in scale and
        shift, so it is cheaper to do that once and to put scales and shifts into the weights.
        """
        q = after_norm(self.attention.query, self.query_norm)
        kv = after_norm(self.attention.key_value, self.context_norm)
        out, down = self.attention.out, cast(nn.Linear, self.ffn[4])
        return BlockWeights(
            Affine(torch.cat([q.weight, kv.weight]), torch.cat([q.bias, kv.bias])),
            Affine(out.weight, out.bias),
            after_norm(cast(nn.Linear, self.ffn[1]), cast(nn.LayerNorm, self.ffn[0])),
            Affine(down.weight, down.bias),
        )

    def project(self, tokens: torch.Tensor, weights: BlockWeights) -> torch.Tensor:
        """Queries, keys and values of tokens: `(..., D)` gives `(..., 3D)`."""
        return linear(self._standardize(tokens), *weights.projection)

    def finish(
        self, tokens: torch.Tensor, mixed: torch.Tensor, weights: BlockWeights
    ) -> torch.Tensor:
        """The rest of the block for tokens `(..., D)` and what they attended to `(..., D)`."""
        p, training = self.dropout, self.training
        x = add_dropout(tokens, linear(mixed, *weights.out), p, training)
        hidden = dropout(gelu(linear(self._standardize(x), *weights.up)), p, training)
        return add_dropout(x, linear(hidden, *weights.down), p, training)

    def _standardize(self, tokens: torch.Tensor) -> torch.Tensor:
        return layer_norm(tokens, tokens.shape[-1:], eps=self.query_norm.eps)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps tokens `(B, T, D)` to `(B, T, D)`."""
        weights = self.weights()
        return self.finish(tokens, self.attention(self.project(tokens, weights)), weights)


class TrunkWeights(NamedTuple):
    """The linear layers of a trunk, in the type that products are computed in."""

    state: list[Affine]
    blocks: list[BlockWeights]


def _rounded(weights: TrunkWeights, dtype: torch.dtype) -> TrunkWeights:
    def rounded(affine: Affine) -> Affine:
        return Affine(affine.weight.to(dtype), affine.bias.to(dtype))

    state, blocks = weights
    return TrunkWeights(
        [rounded(a) for a in state], [BlockWeights(*map(rounded, b)) for b in blocks]
    )


class SlotTransformer(nn.Module):
    """The trunk: N slot tokens attend to M tokens of the encoded state and to each other.

    There are no position codes: slots differ only by the tokens that enter, so permuting those
    permutes the output.

    Args:
        observation_size: length of an observation.
        config: sizes.
    """

    def __init__(self, observation_size: int, config: TransformerConfig) -> None:
        super().__init__()
        d, m = config.width, config.n_state_tokens
        self.state_encoder = nn.Sequential(
            nn.Linear(observation_size, 2 * d), nn.GELU(), nn.Linear(2 * d, m * d)
        )
        self.n_state_tokens = m
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))
        self._kept: Kept[TrunkWeights] = Kept()

    def weights(self) -> TrunkWeights:
        """What `forward` computes with; kept while the trunk is frozen."""
        return self._kept.get(list(self.parameters()), self._compute_weights)

    def _compute_weights(self) -> TrunkWeights:
        up, down = (cast(nn.Linear, self.state_encoder[i]) for i in (0, 2))
        kind = up.weight.device.type
        if torch.is_autocast_enabled(kind):  # what is made of weights is rounded once, at the end
            with torch.autocast(kind, enabled=False):
                return _rounded(self._compute_weights(), torch.get_autocast_dtype(kind))
        state = [Affine(layer.weight, layer.bias) for layer in (up, down)]
        return TrunkWeights(state, [b.weights() for b in cast("list[Block]", list(self.blocks))])

    def forward(
        self,
        observations: torch.Tensor,
        table: torch.Tensor,
        ids: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns slot features `(B, N, D)`, or `(C, N, D)` of the `rows` asked for.

        Slot tokens are rows of a table, whose projections in the first block are computed once.

        Args:
            observations: `(B, obs)`.
            table: `(R, D)` tokens.
            ids: `(B, N)` rows of the table that are the slots' tokens; without it the whole
                table stands in every row of the batch (R = N).
            rows: `(C, N)`: of slot i, only the features in rows `rows[:, i]` of the batch.
        """
        m = self.n_state_tokens
        weights = self.weights()
        blocks = list(zip(cast("list[Block]", list(self.blocks)), weights.blocks, strict=True))
        first = blocks[0]
        up, down = weights.state
        state = linear(gelu(linear(observations, *up)), *down).unflatten(-1, (m, -1))  # (B, M, D)

        def beside_state(of_state: torch.Tensor, of_table: torch.Tensor) -> torch.Tensor:
            slots = (
                of_table.expand(state.shape[0], -1, -1) if ids is None else embedding(ids, of_table)
            )
            return torch.cat([of_state, slots.to(of_state.dtype)], dim=1)  # (B, M + N, ...)

        tokens = beside_state(state, table)
        of_state, of_table = (first[0].project(x, first[1]) for x in (state, table))
        for i, (block, of_block) in enumerate(blocks):
            if i > 0:
                mixed = block.attention(block.project(tokens, of_block))
            elif ids is None:
                mixed = block.attention.with_shared(of_state, of_table)
            else:
                mixed = block.attention(beside_state(of_state, of_table))
            if i == len(blocks) - 1:  # nothing reads what is left out here
                tokens = _slot_major(tokens[:, m:], rows)
                mixed = _slot_major(mixed[:, m:], rows)
            tokens = block.finish(tokens, mixed, of_block)
        features: torch.Tensor = tokens
        return features.transpose(0, 1)


def _slot_major(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Copies `(B, N, D)` to `(N, B, D)`, as the heads need it, or the given rows to `(N, C, D)`."""
    if rows is None:
        return x.transpose(0, 1).contiguous()
    n = x.shape[1]
    flat = rows.T * n + torch.arange(n, device=rows.device)[:, None]  # (N, C)
    picked: torch.Tensor = x.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, (n, -1))
    return picked


class SlotHeads(nn.Module):
    """One small MLP per slot, `D -> hidden -> m_i`, all computed in two batched products.

    Args:
        nvec: number of choices of each sub-action.
        config: sizes.
    """

    keep: torch.Tensor  # (S,)

    def __init__(self, nvec: Sequence[int], config: TransformerConfig) -> None:
        super().__init__()
        layout = SlotLayout(nvec)
        n, k, d, hidden = layout.n_slots, layout.max_choices, config.width, config.head_hidden
        self.dropout = config.dropout
        self.weight1 = nn.Parameter(torch.empty(n, d, hidden).uniform_(-(d**-0.5), d**-0.5))
        self.bias1 = nn.Parameter(torch.empty(n, 1, hidden).uniform_(-(d**-0.5), d**-0.5))
        bound = hidden**-0.5
        # Slots with fewer than K choices have columns that are computed and dropped.
        self.weight2 = nn.Parameter(torch.empty(n, hidden, k).uniform_(-bound, bound))
        self.bias2 = nn.Parameter(torch.empty(n, 1, k).uniform_(-bound, bound))
        self.is_uniform = layout.is_uniform
        self.register_buffer("keep", (~layout.padding).flatten().nonzero()[:, 0], persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps slot features `(B, N, D)` to logits of all choices, flat `(B, S)`."""
        hidden = gelu(torch.baddbmm(self.bias1, features.transpose(0, 1), self.weight1))
        hidden = dropout(hidden, self.dropout, self.training)
        logits = in_float32(lambda h: torch.baddbmm(self.bias2, h, self.weight2), hidden)
        logits = logits.transpose(0, 1).flatten(1)
        return logits if self.is_uniform else logits[:, self.keep]


class ActionStructureModel(nn.Module):
    """Predicts each sub-action from the state and the others (SPIN, section 4.1).

    Its input is the state and N slot tokens, each either one of the slot's choices or the slot's
    mask token; its output is a distribution over every slot's choices.

    Args:
        observation_size: length of an observation.
        nvec: number of choices of each sub-action.
        config: sizes of the trunk and heads.
    """

    row_offsets: torch.Tensor  # (N,)
    mask_ids: torch.Tensor  # (N,): each slot's mask token, m_i

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: TransformerConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config or TransformerConfig()
        self.observation_size = observation_size
        self.layout = SlotLayout(nvec)
        self.nvec = self.layout.nvec
        # How observations were scaled in pre-training (type and parameters), kept with the file.
        self.observation_scaler: dict[str, Any] | None = None
        rows = torch.tensor([m + 1 for m in self.nvec])
        # One table of all slots' rows; slot i's rows are its m_i choices, then its mask token.
        self.embedding = nn.Embedding(self.layout.total + self.layout.n_slots, self.config.width)
        self.register_buffer("row_offsets", rows.cumsum(0) - rows, persistent=False)
        self.register_buffer("mask_ids", torch.tensor(self.nvec), persistent=False)
        self.trunk = SlotTransformer(observation_size, self.config)
        self.heads = SlotHeads(self.nvec, self.config)

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
        features = self.trunk(observations, self.embedding.weight, tokens + self.row_offsets, rows)
        logits: torch.Tensor = self.heads(features)
        return logits

    def log_likelihood(self, observations: torch.Tensor, actions: torch.Tensor) -> LogLikelihood:
        """Asks how well the data supports actions, see `spin_d3rlpy.asm.support.log_likelihood`."""
        return log_likelihood(self, observations, actions)

    def complete(self, observations: torch.Tensor, partial_actions: torch.Tensor) -> torch.Tensor:
        """Fills in sub-actions that are -1, see `spin_d3rlpy.asm.support.complete`."""
        return complete(self, observations, partial_actions)
