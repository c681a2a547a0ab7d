"""Stage 1 of RePreM: predict hidden states and actions of trajectory windows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import cross_entropy, normalize
from tqdm import tqdm

from spin_d3rlpy._compat import keep_freed_memory
from spin_d3rlpy.checkpoints import Checkpoints, require_finite
from spin_d3rlpy.distributed import share_training
from spin_d3rlpy.precision import Precision, autocast, backward, check_precision
from spin_d3rlpy.reprem.model import RePreM


class Windows(NamedTuple):
    """Pieces of trajectories.

    Args:
        observations: `(B, W, obs)`.
        actions: `(B, W, N)`.
        valid: `(B, W)` False past an episode's end, where the other entries mean nothing.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    valid: torch.Tensor


class WindowSource(Protocol):
    """What pre-training draws from: `spin_d3rlpy.data.DeviceReplayBuffer` is one."""

    @property
    def transition_count(self) -> int:
        """Number of steps."""

    def sample_windows(self, batch_size: int, length: int) -> Windows:
        """Returns pieces of trajectories on the device."""


@dataclasses.dataclass()
class RePreMPretrainingConfig:
    """How RePreM is pre-trained; mask ratio and loss as in its paper, budget as SPIN's.

    Args:
        n_epochs: passes over the data; one update sees `batch_size` windows.
        batch_size: windows of an update.
        learning_rate: of Adam, constant.
        clip_grad_norm: largest gradient norm.
        mask_prob: probability that a state or an action of the window is hidden.
        temperature: of the contrastive loss.
        max_updates: stops earlier than `n_epochs` if given.
        log_interval: updates between entries of the record.
        precision: number format of a step, see `spin_d3rlpy.precision.autocast`.
    """

    n_epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 4e-4
    clip_grad_norm: float = 1.0
    mask_prob: float = 0.15
    temperature: float = 0.1
    max_updates: int | None = None
    log_interval: int = 1_000
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if not 0.0 < self.mask_prob < 1.0:
            raise ValueError(f"Expected mask_prob in (0, 1), got {self.mask_prob}.")

    def n_updates(self, n_transitions: int, window: int) -> int:
        """Gradient steps for a dataset of this size, each row counted once an epoch."""
        updates = self.n_epochs * -(-n_transitions // (self.batch_size * window))
        return updates if self.max_updates is None else min(updates, self.max_updates)


@dataclasses.dataclass(frozen=True)
class RePreMRecord:
    """What some updates did.

    Args:
        step: updates so far.
        loss: mean loss since the last entry.
        accuracy: mean share of hidden states and actions that were told from all others.
        seconds: since the start.
        samples: rows (windows times steps) seen so far.
    """

    step: int
    loss: float
    accuracy: float
    seconds: float
    samples: int


class ContrastiveLoss(NamedTuple):
    """The loss and how often the right embedding is the most similar one."""

    loss: torch.Tensor
    accuracy: torch.Tensor


def contrastive_loss(
    predicted: torch.Tensor, targets: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> ContrastiveLoss:
    """InfoNCE over all that is hidden in the batch: states and actions among themselves.

    Args:
        predicted: `(B, W, 2, D)`.
        targets: `(B, W, 2, D)`.
        hidden: `(B, W, 2)`.
        temperature: divides the cosines.
    """
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
    return ContrastiveLoss((losses[0] + losses[1]) / n, (hits[0] + hits[1]) / n)


def pretrain_reprem(
    model: RePreM,
    source: WindowSource,
    config: RePreMPretrainingConfig,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    on_record: Callable[[RePreMRecord], None] | None = None,
    show_progress: bool = True,
    checkpoints: Checkpoints | None = None,
    enable_ddp: bool = False,
) -> list[RePreMRecord]:
    """Trains `model` in place and leaves it in evaluation mode.

    Args:
        model: on the source's device.
        source: where trajectories come from.
        config: how to train.
        transform: applied to observations (an observation scaler).
        on_record: called every `log_interval` updates.
        show_progress: draw a progress bar.
        checkpoints: where to save at an interval and at interrupts, and to go on from.
        enable_ddp: several processes train one model, see `spin_d3rlpy.distributed`.

    Returns:
        One entry per `log_interval` updates, and one at the end.

    Raises:
        DivergenceError: losses or weights are no longer finite.
    """
    keep_freed_memory()
    if enable_ddp:
        share_training(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    window = model.config.window
    total = config.n_updates(source.transition_count, window)
    device = model.position.device
    records: list[RePreMRecord] = []
    sums, since, first = torch.zeros(2, device=device), 0, 1
    started = time.monotonic()
    if checkpoints is not None and (saved := checkpoints.resume("pretraining")) is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sums, since, first = saved["sums"].to(device), saved["since"], saved["step"] + 1
        records = [RePreMRecord(**record) for record in saved["records"]]
        started -= saved["seconds"]

    def state() -> dict[str, Any]:
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "sums": sums,
            "since": since,
            "step": step,
            "records": [dataclasses.asdict(record) for record in records],
            "seconds": time.monotonic() - started,
        }

    model.train()
    for step in tqdm(
        range(first, total + 1), desc="Pre-training", unit="update", disable=not show_progress
    ):
        windows = source.sample_windows(config.batch_size, window)
        observations = windows.observations
        if transform is not None:
            observations = transform(observations.flatten(0, 1)).unflatten(0, (-1, window))
        draw = torch.rand(*windows.valid.shape, 2, device=device)
        draw = draw.masked_fill(~windows.valid[..., None], 1.0)
        # The smallest draw of each kind is hidden, so that there is something to predict.
        hidden = (draw < config.mask_prob) | (draw == draw.amin((0, 1)))
        optimizer.zero_grad()
        with autocast(device, config.precision):
            embeddings = model.embed(observations, windows.actions)
            predicted = model(embeddings, hidden, windows.valid)
            result = contrastive_loss(predicted, embeddings, hidden, config.temperature)
            backward(result.loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad_norm)
        optimizer.step()
        sums += torch.stack([result.loss.detach(), result.accuracy])
        since += 1
        if step % config.log_interval == 0 or step == total:
            loss, accuracy = (sums / since).tolist()
            require_finite({"loss": loss}, "pretraining", step, checkpoints)
            seconds = time.monotonic() - started
            samples = step * config.batch_size * window
            records.append(RePreMRecord(step, loss, accuracy, seconds, samples))
            sums.zero_()
            since = 0
            if on_record is not None:
                on_record(records[-1])
        if checkpoints is not None:
            checkpoints.after_step("pretraining", step, state)
    model.eval()
    return records
