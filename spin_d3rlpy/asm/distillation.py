"""SPIN-Distill: an attention-free student of the frozen trunk (SPIN, section 5)."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from spin_d3rlpy._compat import keep_freed_memory
from spin_d3rlpy.asm.pretraining import VALIDATION_ROWS, StateActionSource
from spin_d3rlpy.checkpoints import Checkpoints, require_finite
from spin_d3rlpy.distributed import share_training
from spin_d3rlpy.precision import Precision, autocast, backward, check_precision, in_float32

Network = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass()
class DistillationConfig:
    """How a student is trained; nothing of this is published, the defaults are ours.

    Args:
        n_updates: gradient steps.
        batch_size: rows of an update.
        learning_rate: of Adam, falling to zero along a cosine.
        validation_share: share of the episodes that is held out.
        validation_interval: updates between measurements on held-out data.
        precision: number format of a step, see `spin_d3rlpy.precision.autocast`.
    """

    n_updates: int = 20_000
    batch_size: int = 1024
    learning_rate: float = 1e-3
    validation_share: float = 0.1
    validation_interval: int = 1_000
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if not 0.0 < self.validation_share < 1.0:
            raise ValueError(f"Expected validation_share in (0, 1), got {self.validation_share}.")


class Student(nn.Module):
    """An MLP from observations `(B, obs)` to the features of all slots `(B, N, D)`.

    Args:
        observation_size: length of an observation.
        n_slots: number of sub-actions (N).
        width: length of a slot's features (D), the teacher's.
        hidden_units: hidden layers, each followed by GELU.
    """

    def __init__(
        self, observation_size: int, n_slots: int, width: int, hidden_units: Sequence[int]
    ) -> None:
        super().__init__()
        sizes = [observation_size, *hidden_units]
        self.hidden = nn.Sequential(
            *(
                layer
                for size, following in itertools.pairwise(sizes)
                for layer in (nn.Linear(size, following), nn.GELU())
            )
        )
        self.out = nn.Linear(sizes[-1], n_slots * width)
        self.shape = (n_slots, width)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`."""
        flat = in_float32(self.out, self.hidden(observations))
        features: torch.Tensor = flat.unflatten(-1, self.shape)
        return features


@dataclasses.dataclass(frozen=True)
class DistillationRecord:
    """A measurement on held-out data.

    Args:
        step: updates so far.
        loss: mean squared error on training data since the last measurement.
        mse: mean squared error on held-out data.
        unexplained: that over the variance of the teacher's features: 0 is perfect, 1 is as good
            as their mean.
        seconds: since the start.
    """

    step: int
    loss: float
    mse: float
    unexplained: float
    seconds: float


def distill(
    student: Student,
    teacher: Network,
    source: StateActionSource,
    held_out: StateActionSource,
    config: DistillationConfig,
    transform: Network | None = None,
    on_record: Callable[[DistillationRecord], None] | None = None,
    show_progress: bool = True,
    checkpoints: Checkpoints | None = None,
    enable_ddp: bool = False,
) -> list[DistillationRecord]:
    """Regresses the student in place onto the teacher's features by mean squared error.

    Args:
        student: on the source's device.
        teacher: maps observations `(B, obs)` to `(B, N, D)`, without dropout.
        source: where observations come from.
        held_out: where those come from that it is measured on.
        config: how to train.
        transform: applied to observations (an observation scaler).
        on_record: called after each measurement.
        show_progress: draw a progress bar.
        checkpoints: where to save at an interval and at interrupts, and to go on from.
        enable_ddp: several processes train one student, see `spin_d3rlpy.distributed`.

    Returns:
        One entry per measurement.

    Raises:
        DivergenceError: losses or weights are no longer finite.
    """
    keep_freed_memory()
    if enable_ddp:
        share_training(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=config.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, config.n_updates))
    device = next(student.parameters()).device
    records: list[DistillationRecord] = []
    total, since, first = torch.zeros((), device=device), 0, 1
    started = time.monotonic()
    if checkpoints is not None and (saved := checkpoints.resume("student")) is not None:
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        total, since, first = saved["total"].to(device), saved["since"], saved["step"] + 1
        records = [DistillationRecord(**record) for record in saved["records"]]
        started -= saved["seconds"]

    def state() -> dict[str, Any]:
        return {
            "student": student.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "total": total,
            "since": since,
            "step": step,
            "records": [dataclasses.asdict(record) for record in records],
            "seconds": time.monotonic() - started,
        }

    def features(network: Network, observations: torch.Tensor) -> torch.Tensor:
        inputs = observations if transform is None else transform(observations)
        with autocast(device, config.precision):
            return network(inputs).float()

    if first == 1:
        # A trunk's features differ more between slots than between states. From here the student
        # has only the differences to learn.
        observations, _ = source.sample_observations_and_actions(config.batch_size)
        with torch.no_grad():
            target = features(teacher, observations)
            student.out.bias.copy_(target.mean(0).flatten())
            student.out.weight.mul_(target.std(0).flatten()[:, None])
    for step in tqdm(
        range(first, config.n_updates + 1),
        desc="Distilling",
        unit="update",
        disable=not show_progress,
    ):
        observations, _ = source.sample_observations_and_actions(config.batch_size)
        with torch.no_grad():
            target = features(teacher, observations)
        optimizer.zero_grad()
        with autocast(device, config.precision):
            loss = (features(student, observations) - target).square().mean()
            backward(loss)
        optimizer.step()
        schedule.step()
        total += loss.detach()
        since += 1
        if step % config.validation_interval == 0 or step == config.n_updates:
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                observations, _ = held_out.sample_observations_and_actions(VALIDATION_ROWS)
                target = features(teacher, observations)
                mse = (features(student, observations) - target).square().mean()
                variance = (target - target.mean(0)).square().mean()
            records.append(
                DistillationRecord(
                    step=step,
                    loss=float(total / since),
                    mse=float(mse),
                    unexplained=float(mse / variance),
                    seconds=time.monotonic() - started,
                )
            )
            require_finite({"loss": records[-1].loss}, "student", step, checkpoints)
            total.zero_()
            since = 0
            if on_record is not None:
                on_record(records[-1])
        if checkpoints is not None:
            checkpoints.after_step("student", step, state)
    return records
