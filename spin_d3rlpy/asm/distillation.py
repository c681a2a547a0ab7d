"""SPIN-Distill: an attention-free student of the frozen trunk (SPIN, section 5)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from spin_d3rlpy.asm.pretraining import VALIDATION_ROWS, StateActionSource
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.fast import keep_freed_memory
from spin_d3rlpy.fast.precision import Precision, autocast, backward, in_float32
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import image_encoder
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.loop import Loop, Metrics, Row, Run
from spin_d3rlpy.training.schedules import cosine_decay

Network = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass()
class DistillationConfig:
    """How a student is trained: Adam, its rate decayed to zero along a cosine. Defaults are ours.

    Args:
        n_updates: gradient steps.
        batch_size: rows of an update, drawn with replacement.
        learning_rate: of the first step.
        validation_share: share of the episodes that is held out.
        validation_interval: updates between measurements on held-out data.
        precision: number format of a step, see `spin_d3rlpy.fast.precision.autocast`; None is the
            algorithm's, float32 without one.
    """

    n_updates: int = 20_000
    batch_size: int = 1024
    learning_rate: float = 1e-3
    validation_share: float = 0.1
    validation_interval: int = 1_000
    precision: Precision | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require_fields(self, validation_share=(0.0 < self.validation_share < 1.0, "in (0, 1)"))


class Student(nn.Module):
    """An MLP from observations `(B, obs)` to the features of all slots `(B, N, D)`."""

    def __init__(
        self, observation_size: int, n_slots: int, width: int, hidden_units: Sequence[int]
    ) -> None:
        super().__init__()
        self.images, encoded_size = image_encoder(observation_size)
        sizes = [encoded_size, *hidden_units]
        layers: list[nn.Module] = []
        for size, following in itertools.pairwise(sizes):
            layers += [nn.Linear(size, following), nn.GELU()]
        self.hidden = nn.Sequential(*layers)
        self.out = nn.Linear(sizes[-1], n_slots * width)
        self.shape = (n_slots, width)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns slot features `(B, N, D)`."""
        flat = in_float32(self.out, self.hidden(self.images(observations)))
        features: torch.Tensor = flat.unflatten(-1, self.shape)
        return features


def distill(
    student: Student,
    teacher: Network,
    source: StateActionSource,
    held_out: StateActionSource,
    config: DistillationConfig,
    run: Run | None = None,
    transform: Network | None = None,
) -> list[Row]:
    """Regresses the student in place onto the teacher's features by mean squared error.

    It is on the source's device. The teacher maps observations `(B, obs)` to `(B, N, D)`, without
    dropout. `transform` is an observation scaler.

    Returns:
        One row per measurement: `epoch`, `step`, `loss`, `seconds`, `mse` (on held-out data) and
        `unexplained` (`mse` over the variance of the teacher's features).
    """
    run = run or Run()
    keep_freed_memory()
    if run.enable_ddp:
        share_training(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=config.learning_rate, fused=True)
    schedule = cosine_decay(optimizer, config.n_updates)
    device = next(student.parameters()).device

    def features(network: Network, observations: torch.Tensor) -> torch.Tensor:
        inputs = observations if transform is None else transform(observations)
        with autocast(device, config.precision or "float32"):
            return network(inputs).float()

    def update() -> Metrics:
        observations, _ = source.sample_observations_and_actions(config.batch_size)
        with torch.no_grad():
            target = features(teacher, observations)
        optimizer.zero_grad()
        with autocast(device, config.precision or "float32"):
            loss = (features(student, observations) - target).square().mean()
            backward(loss)
        optimizer.step()
        return {"loss": loss.detach()}

    def measure() -> Row:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            observations, _ = held_out.sample_observations_and_actions(VALIDATION_ROWS)
            target = features(teacher, observations)
            mse = (features(student, observations) - target).square().mean()
            variance = (target - target.mean(0)).square().mean()
        return {"mse": float(mse), "unexplained": float(mse / variance)}

    loop = Loop(
        run,
        "student",
        config.n_updates,
        config.validation_interval,
        {"student": student, "optimizer": optimizer, "schedule": schedule},
        device,
        label="Distilling",
    )
    if loop.step == 0:
        # A trunk's features differ more between slots than between states. From here the student
        # has only the differences to learn.
        observations, _ = source.sample_observations_and_actions(config.batch_size)
        with torch.no_grad():
            target = features(teacher, observations)
            student.out.bias.copy_(target.mean(0).flatten())
            student.out.weight.mul_(target.std(0).flatten()[:, None])
    with run.log("student", "student", config.validation_interval) as log:
        for _ in loop.epochs(update, after_step=lambda _epoch: schedule.step()):
            log.add(loop.add_row(loop.take_row() | measure()))
    return loop.rows
