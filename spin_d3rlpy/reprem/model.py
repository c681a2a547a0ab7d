"""RePreM's network: a gated Transformer over a window of states and actions.

Axes: `B` batch, `W` window, `N` sub-actions, `D` width, `obs` observation length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from spin_d3rlpy.nvec import SlotLayout


@dataclasses.dataclass()
class RePreMConfig:
    """Sizes; width, blocks and heads equal those of SPIN's trunk.

    Args:
        width: length of state and action embeddings (D).
        n_blocks: gated Transformer blocks.
        n_heads: attention heads; must divide `width`.
        ffn_multiplier: hidden width of the feed-forward layers, in units of `width`.
        window: steps of a trajectory window (W).
        dropout: in attention and feed-forward layers.
        head_hidden: hidden width of each slot's head in stage 2.
    """

    width: int = 256
    n_blocks: int = 3
    n_heads: int = 4
    ffn_multiplier: int = 2
    window: int = 8
    dropout: float = 0.1
    head_hidden: int = 128

    def __post_init__(self) -> None:
        if self.width % self.n_heads:
            raise ValueError(f"Expected n_heads={self.n_heads} to divide width={self.width}.")
        if self.window < 2:
            raise ValueError(f"Expected a window of at least 2 steps, got {self.window}.")


class Gate(nn.Module):
    """GRU-type gate in place of a residual connection; starts close to the identity.

    References:
        * Parisotto et al., Stabilizing Transformers for Reinforcement Learning, 2020, section 3.2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_update = nn.Linear(width, 3 * width)
        self.of_stream = nn.Linear(width, 2 * width, bias=False)
        self.of_reset = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.of_update.bias[width : 2 * width] -= 2.0

    def forward(self, stream: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Mixes `(..., D)` into the stream `(..., D)`."""
        r_update, z_update, h_update = self.of_update(update).chunk(3, dim=-1)
        r_stream, z_stream = self.of_stream(stream).chunk(2, dim=-1)
        reset = torch.sigmoid(r_update + r_stream)
        share = torch.sigmoid(z_update + z_stream)
        candidate = torch.tanh(h_update + self.of_reset(reset * stream))
        # In bfloat16 the products are, the stream is not.
        mixed: torch.Tensor = torch.lerp(stream, candidate.to(stream), share.to(stream))
        return mixed


class GatedBlock(nn.Module):
    """A pre-LN Transformer block with gates."""

    def __init__(self, config: RePreMConfig) -> None:
        super().__init__()
        d, hidden = config.width, config.ffn_multiplier * config.width
        self.n_heads = config.n_heads
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(d)
        self.project = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.attention_gate = Gate(d)
        self.ffn = nn.Sequential(
            nn.LayerNorm(d),
            nn.Linear(d, hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(hidden, d),
        )
        self.ffn_gate = Gate(d)

    def forward(self, tokens: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Maps tokens `(B, T, D)` to the same, attending to `visible` ones `(B, T)`."""
        projected = self.project(self.norm(tokens)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = projected.transpose(1, 3).unbind(2)  # (B, H, T, D / H)
        mixed = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible[:, None, None],
            dropout_p=self.dropout if self.training else 0.0,
        )
        x = self.attention_gate(tokens, torch.relu(self.out(mixed.transpose(1, 2).flatten(2))))
        gated: torch.Tensor = self.ffn_gate(x, torch.relu(self.ffn(x)))
        return gated


def create_state_encoder(observation_size: int, config: RePreMConfig) -> nn.Sequential:
    """Returns an MLP from observations `(B, obs)` to embeddings `(B, D)`, SPIN's state encoder."""
    d = config.width
    return nn.Sequential(nn.Linear(observation_size, 2 * d), nn.GELU(), nn.Linear(2 * d, d))


class RePreM(nn.Module):
    """Encoders and Transformer that predict hidden states and actions of a window.

    References:
        * Cai et al., RePreM: Representation Pre-training with Masked Model for Reinforcement
          Learning, 2023, section 3. Adapted: states are vectors, so their encoder is an MLP (as
          SPIN's) instead of a convolutional network; an action's embedding is the sum of its
          sub-actions'.
    """

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: RePreMConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config or RePreMConfig()
        self.observation_size = observation_size
        self.layout = SlotLayout(nvec)
        d = self.config.width
        self.state_encoder = create_state_encoder(observation_size, self.config)
        self.action_embedding = nn.Embedding(self.layout.total, d)
        self.position = nn.Parameter(0.02 * torch.randn(self.config.window, 1, d))
        self.mask_tokens = nn.Parameter(0.02 * torch.randn(2, d))  # of a state, of an action
        self.blocks = nn.ModuleList(GatedBlock(self.config) for _ in range(self.config.n_blocks))
        self.predict = nn.Linear(d, d)

    def embed(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Embeds states `(B, W, obs)` and actions `(B, W, N)`: `(B, W, 2, D)`."""
        states = self.state_encoder(observations)
        chosen = self.action_embedding(self.layout.positions(actions)).sum(-2)
        return torch.stack([states, chosen.to(states.dtype)], dim=2)

    def forward(
        self, embeddings: torch.Tensor, hidden: torch.Tensor, valid: torch.Tensor
    ) -> torch.Tensor:
        """Predicts the embeddings of a window's states and actions, `(B, W, 2, D)`.

        Args:
            embeddings: `(B, W, 2, D)`, of `embed`.
            hidden: `(B, W, 2)` True for states and actions that are replaced by a mask token.
            valid: `(B, W)` False past an episode's end.
        """
        tokens = torch.where(hidden[..., None], self.mask_tokens.to(embeddings.dtype), embeddings)
        x = (tokens + self.position).flatten(1, 2)  # (B, 2W, D): s, a, s, a, ...
        visible = valid.repeat_interleave(2, dim=1)
        for block in self.blocks:
            x = block(x, visible)
        predicted: torch.Tensor = self.predict(x).unflatten(1, (-1, 2))
        return predicted
