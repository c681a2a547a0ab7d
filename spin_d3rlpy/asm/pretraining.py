"""Stage 1: self-supervised pre-training of the ASM on a dataset's states and actions."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from tqdm import tqdm

from spin_d3rlpy._compat import keep_freed_memory
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives import add_gradients, mask_actions
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.precision import Precision, check_precision


@dataclasses.dataclass()
class PretrainingConfig:
    """How the ASM is pre-trained; the defaults are those of SPIN's published code.

    Args:
        n_epochs: passes of `ceil(n / batch_size)` updates, rows drawn with replacement. 0 leaves
            the trunk as initialized (the paper's untrained ablation).
        batch_size: rows of an update.
        learning_rate: of Adam, constant.
        clip_grad_norm: largest gradient norm.
        mask_prob: probability that a slot is selected (the paper's p).
        mask_token_share: share of selected slots that become the mask token.
        random_share: share of selected slots that become a random choice; the rest stay.
        max_updates: stops earlier than `n_epochs` if given.
        checkpoint_interval: epochs between saved models.
        precision: number format of a step, see `spin_d3rlpy.precision.autocast`.
    """

    n_epochs: int = 100
    batch_size: int = 1024
    learning_rate: float = 4e-4
    clip_grad_norm: float = 1.0
    mask_prob: float = 0.15
    mask_token_share: float = 0.8
    random_share: float = 0.1
    max_updates: int | None = None
    checkpoint_interval: int = 10
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if not 0.0 < self.mask_prob <= 1.0:
            raise ValueError(f"Expected mask_prob in (0, 1], got {self.mask_prob}.")
        if self.mask_token_share + self.random_share > 1.0:
            raise ValueError(
                "Expected mask_token_share + random_share to be at most 1, got "
                f"{self.mask_token_share} + {self.random_share}."
            )

    def n_updates(self, n_transitions: int) -> int:
        """Gradient steps for a dataset of this size."""
        updates = self.n_epochs * math.ceil(n_transitions / self.batch_size)
        return updates if self.max_updates is None else min(updates, self.max_updates)


class StateActionSource(Protocol):
    """What pre-training draws from: `spin_d3rlpy.data.DeviceReplayBuffer` is one."""

    @property
    def transition_count(self) -> int:
        """Number of rows."""

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns observations `(B, obs)` and integer actions `(B, N)` on the device."""


@dataclasses.dataclass(frozen=True)
class PretrainingEpoch:
    """What one epoch of pre-training did.

    Args:
        epoch: from 1.
        step: updates so far.
        loss: mean loss of the epoch.
        accuracy: mean masked accuracy of the epoch.
        seconds: since the start.
        samples: rows seen so far.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    seconds: float
    samples: int


def pretrain(
    asm: ActionStructureModel,
    source: StateActionSource,
    config: PretrainingConfig,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    on_epoch: Callable[[PretrainingEpoch], None] | None = None,
    show_progress: bool = True,
    checkpoints: Checkpoints | None = None,
) -> list[PretrainingEpoch]:
    """Trains `asm` in place by masked action modelling and leaves it in evaluation mode.

    Args:
        asm: the model, on the source's device.
        source: where rows come from.
        config: how to train.
        transform: applied to observations (an observation scaler).
        on_epoch: called after each epoch, e.g. to log and save.
        show_progress: draw a progress bar.
        checkpoints: where to save at an interval and at interrupts, and to go on from.

    Returns:
        One entry per epoch.
    """
    keep_freed_memory()
    optimizer = torch.optim.Adam(asm.parameters(), lr=config.learning_rate, fused=True)
    total = config.n_updates(source.transition_count)
    per_epoch = math.ceil(source.transition_count / config.batch_size)
    mask_ids = asm.mask_ids
    epochs: list[PretrainingEpoch] = []
    started = time.monotonic()
    sums = torch.zeros(2, device=mask_ids.device)
    since = 0
    first = 1
    if checkpoints is not None and (saved := checkpoints.resume("pretraining")) is not None:
        asm.load_state_dict(saved["asm"])
        optimizer.load_state_dict(saved["optimizer"])
        sums, since, first = saved["sums"].to(sums.device), saved["since"], saved["step"] + 1
        epochs = [PretrainingEpoch(**epoch) for epoch in saved["epochs"]]
        started -= saved["seconds"]
    asm.train()

    def state() -> dict[str, Any]:
        return {
            "asm": asm.state_dict(),
            "optimizer": optimizer.state_dict(),
            "sums": sums,
            "since": since,
            "step": step,
            "epochs": [dataclasses.asdict(epoch) for epoch in epochs],
            "seconds": time.monotonic() - started,
        }

    steps = tqdm(
        range(first, total + 1), desc="Pre-training", unit="update", disable=not show_progress
    )
    for step in steps:
        observations, actions = source.sample_observations_and_actions(config.batch_size)
        if transform is not None:
            observations = transform(observations)
        masked = mask_actions(
            actions,
            mask_ids,
            config.mask_prob,
            config.mask_token_share,
            config.random_share,
        )
        optimizer.zero_grad()
        result = add_gradients(asm, observations, actions, masked, config.precision)
        torch.nn.utils.clip_grad_norm_(asm.parameters(), config.clip_grad_norm)
        optimizer.step()
        sums += torch.stack(result)
        since += 1
        if step % per_epoch == 0 or step == total:
            loss, accuracy = (sums / since).tolist()
            epochs.append(
                PretrainingEpoch(
                    epoch=len(epochs) + 1,
                    step=step,
                    loss=loss,
                    accuracy=accuracy,
                    seconds=time.monotonic() - started,
                    samples=step * config.batch_size,
                )
            )
            sums.zero_()
            since = 0
            if on_epoch is not None:
                on_epoch(epochs[-1])
        if checkpoints is not None:
            checkpoints.after_step("pretraining", step, state)
    asm.eval()
    return epochs
