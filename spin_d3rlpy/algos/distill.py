"""SPIN-Distill inside any objective: ASM, then a student of it, then training on the student."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.logging import LoggerAdapterFactory

from spin_d3rlpy.algos.spin import SPINMixin
from spin_d3rlpy.algos.two_stage import log_row
from spin_d3rlpy.asm.distillation import DistillationRecord, distill
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.policies.slot import QueryFeatures
from spin_d3rlpy.policies.student import StudentFeatures


class SPINDistillMixin(SPINMixin):
    """Adds a student between `SPINMixin`'s stages; see there for the arguments."""

    def distill(
        self,
        dataset: Any,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[DistillationRecord]:
        """Teaches the student the features that the ASM's trunk has for the chosen queries.

        Logs `student_loss`, `student_mse` (on held-out episodes), `student_unexplained` and
        `student_seconds` through the d3rlpy logger, in a folder of its own.

        Args:
            dataset: anything that `fit` takes.
            experiment_name: name of the log folder; the class's name if None.
            with_timestamp: append the time to it.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw a progress bar.
            checkpoints: of the run, given by `fit`.

        Returns:
            One entry per measurement on held-out data.

        Raises:
            RuntimeError: there is no ASM yet.
        """
        if self._asm is None:
            raise RuntimeError("There is no teacher: call pretrain or set_asm first.")
        buffer = self._as_buffer(dataset)
        self._build_with_buffer(buffer)
        config = self._config
        features = self._slot_policy.features
        assert isinstance(features, StudentFeatures)
        teacher = QueryFeatures(
            self._asm.observation_size,
            len(config.nvec),
            self._asm.config,
            frozen=True,
            train_queries=False,
            query_init=config.actor_encoder_factory.query_init,
        ).to(torch.device(self._device))
        teacher.load_asm(self._asm)
        training, held_out = buffer.split(config.distillation.validation_share)
        scaler = config.observation_scaler
        student = features.student.requires_grad_(True)
        with self._stage_logger(
            "student",
            config.distillation.validation_interval,
            experiment_name,
            with_timestamp,
            logger_adapter,
            checkpoints,
        ) as logger:

            def on_record(record: DistillationRecord) -> None:
                epoch = -(-record.step // config.distillation.validation_interval)
                log_row(logger, "student", dataclasses.asdict(record), epoch)

            records = distill(
                student,
                teacher.eval(),
                training,
                held_out,
                config.distillation,
                transform=None if scaler is None else scaler.transform,
                on_record=on_record,
                show_progress=show_progress,
                checkpoints=checkpoints,
                enable_ddp=self._enable_ddp,
            )
        features.pretrained.fill_(True)
        features.freeze(0)
        return records

    def _before_fit(
        self,
        buffer: DeviceReplayBuffer,
        logger_adapter: LoggerAdapterFactory,
        experiment_name: str,
        with_timestamp: bool,
        show_progress: bool,
        checkpoints: Checkpoints | None,
    ) -> None:
        self._show_progress = show_progress
        if self.is_pretrained:
            return
        for stage in (self.pretrain, self.distill):
            if stage == self.pretrain and self._asm is not None:
                continue
            stage(
                buffer,
                experiment_name,
                with_timestamp,
                logger_adapter,
                show_progress,
                checkpoints,
            )
