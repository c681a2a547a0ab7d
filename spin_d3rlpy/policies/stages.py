"""First stages of policies: trainings that precede the objective's.

Stages know no algorithm, because factories name them: a `StageContext` has all that they need, and
a `StageResult` what they learned. `fit`, `pretrain` and `spin-d3rlpy pretrain` run the same stages.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, pretrain, save_asm
from spin_d3rlpy.asm.distillation import DistillationConfig, distill
from spin_d3rlpy.data import DeviceReplayBuffer, TrajectoryWeights
from spin_d3rlpy.fast.precision import Precision
from spin_d3rlpy.policies.base import Policy
from spin_d3rlpy.policies.features import (
    QueryFeatures,
    SlotPolicy,
    StudentFeatures,
    TrajectoryFeatures,
)
from spin_d3rlpy.policies.reprem import RePreMModel, RePreMPretrainingConfig, pretrain_reprem
from spin_d3rlpy.training.loop import Row, Run

TStageConfig = TypeVar(
    "TStageConfig", PretrainingConfig, DistillationConfig, RePreMPretrainingConfig
)

ASM_FILE = "asm.safetensors"  # the last epoch's model, in a run's folder


def asm_file(epoch: int | None) -> str:
    """Returns the name of an epoch's model in its folder; of the last one if None."""
    return ASM_FILE if epoch is None else f"asm_{epoch}.safetensors"


@dataclasses.dataclass(frozen=True)
class StageContext:
    """Inputs of a stage."""

    policy: Policy  # the network, on `device`, in which most stages store what they learned
    factory: Any  # the encoder factory, with the stage's settings
    buffer: DeviceReplayBuffer  # the dataset, on `device`
    held_out: DeviceReplayBuffer | None  # as the dataset, but nothing is trained on them
    device: str
    run: Run  # progress bar, checkpoints, logs
    transform: Callable[[torch.Tensor], torch.Tensor] | None  # the observation scaling
    scaler: dict[str, Any] | None  # its type and parameters, for an ASM's file
    asm: ActionStructureModel | None  # given, or of an earlier stage
    observation_size: int  # length of the networks' input, which knows its images
    precision: Precision = "float32"  # the algorithm's, where a stage has none of its own
    has_value_codes: bool = True  # whether a model that can have them learns by `asm.value_codes`

    def with_precision(self, config: TStageConfig) -> TStageConfig:
        """Returns a stage's settings with a number format."""
        return dataclasses.replace(config, precision=config.precision or self.precision)


@dataclasses.dataclass(frozen=True)
class StageResult:
    """What a stage learned, in addition to what it stored in the policy."""

    rows: list[Row]  # one per epoch
    asm: ActionStructureModel | None = None  # which the algorithm adopts


class Stage(ABC):
    """One first stage."""

    name: str  # in checkpoints and the log folder

    def is_done(self, context: StageContext) -> bool:
        """Whether `fit` skips this stage although the policy is not pre-trained."""
        return False

    @abstractmethod
    def train(self, context: StageContext) -> StageResult:
        """Trains and returns the epochs' rows and, if it is one, the model."""


class PretrainASM(Stage):
    """Pre-trains an Action Structure Model on states and actions (SPIN, section 4.1).

    Logs `asm_loss`, `asm_accuracy`, `asm_seconds`, `asm_samples` and, with
    `pretraining.validation_share`, `asm_validation_<name>` per epoch. Saves
    `asm_<epoch>.safetensors` in the log folder every `pretraining.checkpoint_interval` epochs and
    after the last one.
    """

    name = "pretraining"

    def is_done(self, context: StageContext) -> bool:
        return context.asm is not None

    def train(self, context: StageContext) -> StageResult:
        return self.train_model(self.create_model(context), context)

    def create_model(self, context: StageContext) -> ActionStructureModel:
        """Returns the untrained model, on the context's device."""
        size, nvec = context.observation_size, context.buffer.nvec
        asm = ActionStructureModel(size, nvec, context.factory.structure)
        if asm.value_codes is not None and not context.has_value_codes:
            asm.value_codes.leave_out()
        asm.observation_scaler = context.scaler
        return asm.to(torch.device(context.device))

    def train_model(self, asm: ActionStructureModel, context: StageContext) -> StageResult:
        """Trains a model that `create_model` returned, or resumes it from checkpoints.

        Raises:
            DivergenceError: losses or weights are no longer finite.
        """
        source = context.buffer
        config = context.with_precision(context.factory.pretraining)
        validation = None
        if config.validation_share:
            source, validation = source.split(config.validation_share)
        batch_size = asm.rows_per_update(config.batch_size)
        last_step = config.n_updates(source.transition_count, batch_size)

        def save(row: Row, folder: Path | None) -> None:
            epoch = int(row["epoch"])
            due = epoch % config.checkpoint_interval == 0
            if folder is not None and (due or row["step"] == last_step):
                save_asm(asm, folder / asm_file(epoch))

        rows = pretrain(
            asm,
            source,
            config,
            context.run,
            context.transform,
            validation,
            context.held_out or validation,
            save,
            source.for_imitation(TrajectoryWeights()) if source.is_weighted else None,
        )
        return StageResult(rows, asm)


class Distill(Stage):
    """Trains an attention-free student of the ASM's trunk (SPIN, section 5).

    Logs `student_loss`, `student_mse` (on held-out episodes), `student_unexplained` and
    `student_seconds`.
    """

    name = "student"

    def train(self, context: StageContext) -> StageResult:
        """Trains the policy's student.

        Raises:
            RuntimeError: there is no ASM yet.
        """
        asm, factory = context.asm, context.factory
        if asm is None:
            raise RuntimeError("There is no teacher: call pretrain or set_asm first.")
        assert isinstance(context.policy, SlotPolicy)
        features = context.policy.features
        assert isinstance(features, StudentFeatures)
        teacher = QueryFeatures(
            asm.observation_size,
            len(asm.nvec),
            asm.transformer.config,
            frozen=True,
            train_queries=False,
            query_init=factory.query_init,
        ).to(torch.device(context.device))
        teacher.load_asm(asm)
        config = context.with_precision(factory.distillation)
        training, held_out = context.buffer.split(config.validation_share)
        student = features.student.requires_grad_(True)
        rows = distill(
            student, teacher.eval(), training, held_out, config, context.run, context.transform
        )
        features.pretrained.fill_(True)
        features.freeze()
        return StageResult(rows)


class PretrainTrajectories(Stage):
    """Pre-trains a RePreM on trajectories and keeps its state encoder.

    Logs `reprem_loss`, `reprem_accuracy`, `reprem_seconds` and `reprem_samples`.
    """

    name = "pretraining"

    def train(self, context: StageContext) -> StageResult:
        assert isinstance(context.policy, SlotPolicy)
        features = context.policy.features
        assert isinstance(features, TrajectoryFeatures)
        buffer, factory = context.buffer, context.factory
        model = RePreMModel(context.observation_size, buffer.nvec, factory.sizes)
        model.to(torch.device(context.device))
        config = context.with_precision(factory.pretraining)
        rows = pretrain_reprem(model, buffer, config, context.run, context.transform)
        features.load_reprem(model)
        return StageResult(rows)
