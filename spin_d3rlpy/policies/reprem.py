"""RePreM: a gated Transformer over a window (`W`) of states and actions, and its pre-training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize, scaled_dot_product_attention

from spin_d3rlpy.asm.model import BlockSizes
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.fast import keep_freed_memory
from spin_d3rlpy.fast.precision import Precision, autocast, backward
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import behind_images
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.graphs import recorded
from spin_d3rlpy.training.loop import Loop, Metrics, Row, Run


@dataclasses.dataclass()
class RePreMConfig(BlockSizes):
    """Sizes; width, blocks and heads equal those of SPIN's trunk.

    Args:
        width: length of state and action embeddings (D).
        n_blocks: gated Transformer blocks.
        n_heads: attention heads; must divide `width`.
        ffn_multiplier: hidden width of the feed-forward layers, in units of `width`.
        window: steps of a trajectory window (W).
        dropout: probability, also in the heads of stage 2.
        head_hidden: hidden width of each slot's head in stage 2.
    """

    ffn_multiplier: int = 2
    window: int = 8
    dropout: float = 0.1
    head_hidden: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(self, window=(self.window >= 2, "of at least 2 steps"))


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


def create_state_encoder(observation_size: int, config: RePreMConfig) -> nn.Module:
    """Returns an MLP from observations `(B, obs)` to embeddings `(B, D)`, SPIN's state encoder."""
    d = config.width
    network: nn.Module = behind_images(
        observation_size,
        lambda size: nn.Sequential(nn.Linear(size, 2 * d), nn.GELU(), nn.Linear(2 * d, d)),
    )
    return network


class RePreMModel(nn.Module):
    """Encoders and Transformer that predict hidden states and actions of a window.

    References:
        * Cai et al., RePreM: Representation Pre-training with Masked Model for Reinforcement
          Learning, 2023, section 3. Adapted: the states' encoder is an MLP (as SPIN's), behind a
          convolutional network only where there are images; an action's embedding is the sum of
          its slots'.
    """

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: RePreMConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config or RePreMConfig()
        self.observation_size = observation_size
        self.slot_layout = SlotLayout(nvec)
        d = self.config.width
        self.state_encoder = create_state_encoder(observation_size, self.config)
        self.action_embedding = nn.Embedding(self.slot_layout.total, d)
        self.position = nn.Parameter(0.02 * torch.randn(self.config.window, 1, d))
        self.mask_tokens = nn.Parameter(0.02 * torch.randn(2, d))  # of a state, of an action
        self.blocks = nn.ModuleList(GatedBlock(self.config) for _ in range(self.config.n_blocks))
        self.predict = nn.Linear(d, d)

    def embed(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Embeds states `(B, W, obs)` and actions `(B, W, N)`: `(B, W, 2, D)`."""
        states = self.state_encoder(observations)
        chosen = self.action_embedding(self.slot_layout.positions(actions)).sum(-2)
        return torch.stack([states, chosen.to(states.dtype)], dim=2)

    def forward(
        self, embeddings: torch.Tensor, hidden: torch.Tensor, valid: torch.Tensor
    ) -> torch.Tensor:
        """Predicts the embeddings `(B, W, 2, D)` of a window's states and actions.

        `hidden` `(B, W, 2)` is True for those that are replaced by a mask token, `valid` `(B, W)`
        False past an episode's end.
        """
        tokens = torch.where(hidden[..., None], self.mask_tokens.to(embeddings.dtype), embeddings)
        x = (tokens + self.position).flatten(1, 2)  # (B, 2W, D): s, a, s, a, ...
        visible = valid.repeat_interleave(2, dim=1)
        for block in self.blocks:
            x = block(x, visible)
        predicted: torch.Tensor = self.predict(x).unflatten(1, (-1, 2))
        return predicted


class Windows(NamedTuple):
    """Pieces of trajectories."""

    observations: torch.Tensor  # (B, W, obs)
    actions: torch.Tensor  # (B, W, N)
    valid: torch.Tensor  # (B, W), False past an episode's end, where the others are meaningless


class TrajectorySource(Protocol):
    """Source of windows, such as `spin_d3rlpy.data.DeviceReplayBuffer`."""

    @property
    def actions(self) -> torch.Tensor: ...  # (n, N)

    @property
    def observation_index(self) -> torch.Tensor: ...  # (n,) row of each step's observation

    @property
    def episode_starts(self) -> torch.Tensor: ...  # (episodes + 1,) first steps, and n

    @property
    def transition_count(self) -> int: ...  # number of steps (n)

    def sample_index(self, batch_size: int) -> torch.Tensor:
        """Draws steps `(B,)`."""

    def observations_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns observations `(R, obs)` of these rows."""


def sample_windows(source: TrajectorySource, batch_size: int, length: int) -> Windows:
    """Draws windows that begin at any step; past an episode's end its last step is repeated."""
    first = source.sample_index(batch_size)[:, None]
    starts = source.episode_starts
    end = starts[torch.searchsorted(starts, first, right=True)]  # of the episode, (B, 1)
    index = first + torch.arange(length, device=first.device)
    valid = index < end
    index = torch.minimum(index, end - 1)
    rows = source.observation_index[index]
    observations = source.observations_at(rows.flatten()).unflatten(0, rows.shape)
    return Windows(observations, source.actions[index].long(), valid)


@dataclasses.dataclass()
class RePreMPretrainingConfig:
    """How RePreM is pre-trained, by Adam; mask ratio and loss as in its paper, budget as SPIN's.

    Args:
        n_epochs: passes over the data.
        batch_size: windows of an update.
        learning_rate: of Adam, constant.
        clip_grad_norm: largest norm of all gradients together.
        mask_prob: probability that a state or an action of the window is hidden.
        temperature: of the contrastive loss.
        max_updates: stops earlier than `n_epochs` if given.
        log_interval: updates between rows of the log.
        precision: number format of a step, see `spin_d3rlpy.fast.precision.autocast`; None is the
            algorithm's, float32 without one.
    """

    n_epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 4e-4
    clip_grad_norm: float = 1.0
    mask_prob: float = 0.15
    temperature: float = 0.1
    max_updates: int | None = None
    log_interval: int = 1_000
    precision: Precision | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require_fields(self, mask_prob=(0.0 < self.mask_prob < 1.0, "in (0, 1)"))

    def n_updates(self, n_transitions: int, window: int) -> int:
        """Gradient steps for a dataset of this size, each row counted once an epoch."""
        updates = self.n_epochs * -(-n_transitions // (self.batch_size * window))
        return updates if self.max_updates is None else min(updates, self.max_updates)


def contrastive_loss(
    predicted: torch.Tensor, targets: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """InfoNCE over the batch's hidden entries, states and actions separately, and its accuracy.

    Predictions and targets are `(B, W, 2, D)`, `hidden` is `(B, W, 2)`.
    """
    if predicted.is_cuda:
        return masked_contrastive_loss(predicted, targets, hidden, temperature)
    losses, hits = [], []
    for kind in (0, 1):
        chosen = hidden[:, :, kind]
        u = normalize(predicted[:, :, kind][chosen].float(), dim=-1)
        v = normalize(targets[:, :, kind][chosen].float(), dim=-1)
        similarity = u @ v.T / temperature
        own = torch.arange(len(u), device=u.device)
        losses.append(cross_entropy(similarity, own, reduction="sum"))
        hits.append((similarity.detach().argmax(-1) == own).sum())
    n = hidden.sum()
    return (losses[0] + losses[1]) / n, (hits[0] + hits[1]) / n


def masked_contrastive_loss(
    predicted: torch.Tensor, targets: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same among all entries, those that are shown masked: a GPU need not be asked how many."""
    u, v = (
        normalize(x.flatten(0, 1).transpose(0, 1).float(), dim=-1) for x in (predicted, targets)
    )
    mask = hidden.flatten(0, 1).T  # (2, B W)
    similarity = (u @ v.mT / temperature).masked_fill(~mask[:, None], -torch.inf)
    own = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    # Rows that are shown have no target of their own; none is counted.
    chosen = torch.where(mask, own, mask.int().argmax(1, keepdim=True))
    losses = cross_entropy(similarity.transpose(1, 2), chosen, reduction="none")
    hits = (similarity.detach().argmax(-1) == own) & mask
    n = mask.sum()
    return (losses * mask).sum() / n, hits.sum() / n


def pretrain_reprem(
    model: RePreMModel,
    source: TrajectorySource,
    config: RePreMPretrainingConfig,
    run: Run | None = None,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[Row]:
    """Trains `model` in place and leaves it in evaluation mode; arguments as of `pretrain`.

    Returns:
        One row per `log_interval` updates and one at the end: `epoch`, `step`, `loss`, `accuracy`
        (share of hidden entries nearest to their prediction), `seconds`, `samples` (steps so far).
    """
    run = run or Run()
    keep_freed_memory()
    if run.enable_ddp:
        share_training(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    window = model.config.window
    device = model.position.device

    def update() -> Metrics:
        windows = sample_windows(source, config.batch_size, window)
        observations = windows.observations
        if transform is not None:
            observations = transform(observations.flatten(0, 1)).unflatten(0, (-1, window))
        draw = torch.rand(*windows.valid.shape, 2, device=device)
        draw = draw.masked_fill(~windows.valid[..., None], 1.0)
        # The smallest draw of each kind is hidden, so that there is something to predict.
        hidden = (draw < config.mask_prob) | (draw == draw.amin((0, 1)))
        optimizer.zero_grad()
        with autocast(device, config.precision or "float32"):
            embeddings = model.embed(observations, windows.actions)
            predicted = model(embeddings, hidden, windows.valid)
            loss, accuracy = contrastive_loss(predicted, embeddings, hidden, config.temperature)
            backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad_norm)
        optimizer.step()
        return {"loss": loss.detach(), "accuracy": accuracy}

    loop = Loop(
        run,
        "pretraining",
        config.n_updates(source.transition_count, window),
        config.log_interval,
        {"model": model, "optimizer": optimizer},
        device,
        label="Pre-training",
    )
    model.train()
    with run.log("pretraining", "reprem", config.log_interval) as log:
        for _ in loop.epochs(recorded(update, [optimizer], device, run.compile_graph)):
            samples = loop.step * config.batch_size * window
            log.add(loop.add_row(loop.take_row() | {"samples": samples}))
    model.eval()
    return loop.rows
