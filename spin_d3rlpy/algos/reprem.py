"""RePreM's first stage inside any objective: pre-train a trajectory model, keep its encoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.logging import LoggerAdapterFactory

from spin_d3rlpy.algos.two_stage import TwoStageMixin, log_row
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.policies.trajectory import TrajectoryFeatures
from spin_d3rlpy.reprem import RePreM, pretrain_reprem
from spin_d3rlpy.reprem.pretraining import RePreMRecord


class RePreMMixin(TwoStageMixin):
    """Trains heads and critics on a frozen state encoder; see `TwoStageMixin` for the arguments."""

    def pretrain(
        self,
        dataset: Any,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[RePreMRecord]:
        """Stage 1: pre-trains a RePreM on the dataset's trajectories and keeps its state encoder.

        Logs `reprem_loss`, `reprem_accuracy`, `reprem_seconds` and `reprem_samples` through the
        d3rlpy logger, in a folder of its own.

        Args:
            dataset: anything that `fit` takes.
            experiment_name: name of the log folder; the class's name if None.
            with_timestamp: append the time to it.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw a progress bar.
            checkpoints: of the run, given by `fit`.

        Returns:
            One entry per `pretraining.log_interval` updates.
        """
        buffer = self._as_buffer(dataset)
        self._build_with_buffer(buffer)
        config = self._config
        features = self._slot_policy.features
        assert isinstance(features, TrajectoryFeatures)
        model = RePreM(
            buffer.observations.shape[1], config.nvec, config.actor_encoder_factory.sizes
        ).to(torch.device(self._device))
        scaler = config.observation_scaler
        interval = config.pretraining.log_interval
        with self._stage_logger(
            "pretraining", interval, experiment_name, with_timestamp, logger_adapter, checkpoints
        ) as logger:
            records = pretrain_reprem(
                model,
                buffer,
                config.pretraining,
                transform=None if scaler is None else scaler.transform,
                on_record=lambda record: log_row(
                    logger, "reprem", dataclasses.asdict(record), -(-record.step // interval)
                ),
                show_progress=show_progress,
                checkpoints=checkpoints,
                enable_ddp=self._enable_ddp,
            )
        features.load_reprem(model)
        return records
