"""Stage 1: self-supervised pre-training of the ASM on a dataset's states and actions."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args

import torch
from tqdm import tqdm

from spin_d3rlpy._compat import keep_freed_memory
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives import (
    ContrastiveActionModelling,
    MaskedActionModelling,
    PretrainingObjective,
    Validation,
    VariationalActionModelling,
)
from spin_d3rlpy.checkpoints import Checkpoints, require_finite
from spin_d3rlpy.distributed import share_training
from spin_d3rlpy.graphs import CudaRecorder, GraphedStep, can_record
from spin_d3rlpy.precision import Precision, autocast, check_precision

ObjectiveName = Literal["masked", "variational", "contrastive"]
VALIDATION_ROWS = 4096


@dataclasses.dataclass()
class PretrainingConfig:
    """How the ASM is pre-trained; the defaults are those of SPIN's published code.

    Args:
        objective: `"masked"` (MAM, SPIN's own), `"variational"` (VAM) or `"contrastive"` (CAM).
        n_epochs: passes of `ceil(n / batch_size)` updates, rows drawn with replacement. 0 leaves
            the trunk as initialized (the paper's untrained ablation).
        batch_size: rows of an update.
        learning_rate: of Adam, constant.
        clip_grad_norm: largest gradient norm.
        mask_prob: MAM: probability that a slot is selected (the paper's p).
        mask_token_share: MAM: share of selected slots that become the mask token.
        random_share: MAM: share of selected slots that become a random choice; the rest stay.
        mask_prob_max: MAM: if given, every row has a probability of its own, uniform between
            `mask_prob` and this. At 1 the fully masked action, stage 2's input, is trained on.
        latent_size: VAM: length of the latent vector.
        kl_weight: VAM: beta.
        projection_size: CAM: length of the compared vectors.
        temperature: CAM: tau.
        max_updates: stops earlier than `n_epochs` if given.
        checkpoint_interval: epochs between saved models.
        precision: number format of a step, see `spin_d3rlpy.precision.autocast`.
        validation_share: share of the episodes that is held out and measured after each epoch.
        patience: epochs without a better held-out score after which training stops; the model is
            the best epoch's then. None trains to the end and keeps the last one.
    """

    objective: ObjectiveName = "masked"
    n_epochs: int = 100
    batch_size: int = 1024
    learning_rate: float = 4e-4
    clip_grad_norm: float = 1.0
    mask_prob: float = 0.15
    mask_token_share: float = 0.8
    random_share: float = 0.1
    mask_prob_max: float | None = None
    latent_size: int = 64
    kl_weight: float = 0.1
    projection_size: int = 128
    temperature: float = 0.1
    max_updates: int | None = None
    checkpoint_interval: int = 10
    precision: Precision = "float32"
    validation_share: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.objective not in get_args(ObjectiveName):
            raise ValueError(
                f"Expected objective {', '.join(get_args(ObjectiveName))}; got {self.objective!r}."
            )
        if not 0.0 < self.mask_prob <= 1.0:
            raise ValueError(f"Expected mask_prob in (0, 1], got {self.mask_prob}.")
        if self.mask_token_share + self.random_share > 1.0:
            raise ValueError(
                "Expected mask_token_share + random_share to be at most 1, got "
                f"{self.mask_token_share} + {self.random_share}."
            )
        if self.mask_prob_max is not None and not self.mask_prob <= self.mask_prob_max <= 1.0:
            raise ValueError(
                f"Expected mask_prob_max between mask_prob={self.mask_prob} and 1, got "
                f"{self.mask_prob_max}."
            )
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(f"Expected validation_share in [0, 1), got {self.validation_share}.")
        if self.patience is not None and (self.patience < 1 or not self.validation_share):
            raise ValueError(
                "Expected patience of at least 1 and, for what it waits for, a validation_share "
                f"above 0; got {self.patience} and {self.validation_share}."
            )

    def create_objective(self, asm: ActionStructureModel) -> PretrainingObjective:
        """Returns the task that pre-trains `asm`, on its device."""
        objective: PretrainingObjective
        if self.objective == "masked":
            objective = MaskedActionModelling(
                asm,
                self.mask_prob,
                self.mask_token_share,
                self.random_share,
                self.mask_prob_max,
            )
        elif self.objective == "variational":
            objective = VariationalActionModelling(asm, self.latent_size, self.kl_weight)
        else:
            objective = ContrastiveActionModelling(asm, self.projection_size, self.temperature)
        return objective.to(asm.embedding.weight.device)

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
        validation: measured on held-out data, by name; what depends on the objective.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    seconds: float
    samples: int
    validation: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def row(self) -> dict[str, float]:
        """Everything in one row, validation metrics as `validation_<name>`."""
        row = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        validation = row.pop("validation")
        return row | {f"validation_{name}": value for name, value in validation.items()}


class _EarlyStopping:
    """Keeps the weights of the best epoch and says when to stop."""

    def __init__(self, asm: ActionStructureModel, patience: int | None) -> None:
        self._asm = asm
        self._patience = patience
        self.state: dict[str, Any] = {"best": -math.inf, "since": 0, "weights": None}

    def after_epoch(self, score: float) -> bool:
        """Takes note of an epoch's score; returns whether it is time to stop."""
        state = self.state
        if self._patience is None:
            return False
        if score > state["best"]:
            state.update(best=score, since=0, weights=copy.deepcopy(self._asm.state_dict()))
        else:
            state["since"] += 1
        return bool(state["since"] >= self._patience)

    def restore_best(self) -> None:
        """Sets the model back to its best epoch."""
        if self.state["weights"] is not None:
            self._asm.load_state_dict(self.state["weights"])


def pretrain(
    asm: ActionStructureModel,
    source: StateActionSource,
    config: PretrainingConfig,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    on_epoch: Callable[[PretrainingEpoch], None] | None = None,
    show_progress: bool = True,
    checkpoints: Checkpoints | None = None,
    held_out: StateActionSource | None = None,
    enable_ddp: bool = False,
    compile_graph: bool = False,
) -> list[PretrainingEpoch]:
    """Trains `asm` in place by the config's objective and leaves it in evaluation mode.

    Args:
        asm: the model, on the source's device.
        source: where rows come from.
        config: how to train.
        transform: applied to observations (an observation scaler).
        on_epoch: called after each epoch, e.g. to log and save.
        show_progress: draw a progress bar.
        checkpoints: where to save at an interval and at interrupts, and to go on from.
        held_out: 4,096 rows of it, the same each time, are predicted after each epoch.
        enable_ddp: several processes train one model, see `spin_d3rlpy.distributed`.
        compile_graph: on a GPU, record an update as a CUDA graph and replay it, see
            `spin_d3rlpy.graphs`; without effect elsewhere. The source must draw without waiting
            for the device.

    Returns:
        One entry per epoch.

    Raises:
        ValueError: `config.patience` is set and `held_out` is missing.
        DivergenceError: losses or weights are no longer finite.
    """
    if config.patience is not None and held_out is None:
        raise ValueError("patience needs held_out data to stop by.")
    keep_freed_memory()
    objective = config.create_objective(asm)
    if enable_ddp:
        share_training(objective)
    optimizer = torch.optim.Adam(objective.parameters(), lr=config.learning_rate, fused=True)
    stopping = _EarlyStopping(asm, config.patience)
    total = config.n_updates(source.transition_count)
    per_epoch = math.ceil(source.transition_count / config.batch_size)
    epochs: list[PretrainingEpoch] = []
    started = time.monotonic()
    sums = torch.zeros(2, device=asm.embedding.weight.device)
    since = 0
    first = 1
    if checkpoints is not None and (saved := checkpoints.resume("pretraining")) is not None:
        objective.load_state_dict(saved["objective"])
        optimizer.load_state_dict(saved["optimizer"])
        stopping.state = saved["stopping"]
        sums, since, first = saved["sums"].to(sums.device), saved["since"], saved["step"] + 1
        epochs = [PretrainingEpoch(**epoch) for epoch in saved["epochs"]]
        started -= saved["seconds"]
        if saved["stopped"]:
            first = total + 1
    objective.train()
    stopped = False

    def state() -> dict[str, Any]:
        return {
            "objective": objective.state_dict(),
            "optimizer": optimizer.state_dict(),
            "stopping": stopping.state,
            "stopped": stopped,
            "sums": sums,
            "since": since,
            "step": step,
            "epochs": [dataclasses.asdict(epoch) for epoch in epochs],
            "seconds": time.monotonic() - started,
        }

    def scaled(observations: torch.Tensor) -> torch.Tensor:
        return observations if transform is None else transform(observations)

    def update() -> None:
        observations, actions = source.sample_observations_and_actions(config.batch_size)
        optimizer.zero_grad()
        result = objective.add_gradients(scaled(observations), actions, config.precision)
        torch.nn.utils.clip_grad_norm_(objective.parameters(), config.clip_grad_norm)
        optimizer.step()
        sums.add_(torch.stack(result))

    do_update: Callable[[], None] = update
    if compile_graph and can_record(sums.device):
        do_update = GraphedStep(update, [optimizer], CudaRecorder(sums.device))
    steps = tqdm(
        range(first, total + 1), desc="Pre-training", unit="update", disable=not show_progress
    )
    for step in steps:
        do_update()
        since += 1
        if step % per_epoch == 0 or step == total:
            loss, accuracy = (sums / since).tolist()
            require_finite({"loss": loss}, "pretraining", step, checkpoints)
            validation: Mapping[str, float] = {}
            if held_out is not None:
                score, validation = _validate(objective, held_out, scaled, config.precision)
                stopped = stopping.after_epoch(score)
            epochs.append(
                PretrainingEpoch(
                    epoch=len(epochs) + 1,
                    step=step,
                    loss=loss,
                    accuracy=accuracy,
                    seconds=time.monotonic() - started,
                    samples=step * config.batch_size,
                    validation=validation,
                )
            )
            sums.zero_()
            since = 0
            if on_epoch is not None:
                on_epoch(epochs[-1])
        if checkpoints is not None:
            checkpoints.after_step("pretraining", step, state)
        if stopped:
            break
    stopping.restore_best()
    asm.eval()
    return epochs


def _validate(
    objective: PretrainingObjective,
    held_out: StateActionSource,
    transform: Callable[[torch.Tensor], torch.Tensor],
    precision: Precision,
) -> Validation:
    """Measures on the same rows and with the same masks each time, without dropout."""
    device = objective.asm.embedding.weight.device
    devices = [device] if device.type == "cuda" else []
    objective.eval()
    # Training must not depend on whether it is measured.
    with torch.random.fork_rng(devices), torch.no_grad(), autocast(device, precision):
        torch.manual_seed(0)
        observations, actions = held_out.sample_observations_and_actions(VALIDATION_ROWS)
        result = objective.validate(transform(observations), actions)
    objective.train()
    return result
