"""Objectives whose policy is made of features that are learned before, and then frozen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from d3rlpy.base import DeviceArg
from d3rlpy.logging import D3RLPyLogger, FileAdapterFactory, LoggerAdapterFactory
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.actor_critic import PolicyAlgo
from spin_d3rlpy.algos.logs import open_logger
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.policies import SlotPolicy
from spin_d3rlpy.policies.feature_cache import compute_features


class TwoStageMixin(PolicyAlgo[Any, Any]):
    """Adds a first stage to an objective's algorithm, whose features the second stage freezes.

    Args:
        config: the configuration; defaults if None.
        device: as in d3rlpy.
        enable_ddp: several processes train one model.
        **fields: config fields; those of the policy's encoder factory are taken, too.

    Raises:
        ValueError: an encoder factory of another policy.
    """

    def __init__(
        self,
        config: Any = None,
        device: DeviceArg = False,
        enable_ddp: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(config, device, enable_ddp, **fields)
        factory_class = type(self.config_class().actor_encoder_factory)
        if not isinstance(self._config.actor_encoder_factory, factory_class):
            raise ValueError(
                f"{type(self).__name__} needs a {factory_class.__name__} as "
                f"actor_encoder_factory, got {self._config.actor_encoder_factory!r}."
            )
        self._show_progress = True

    @property
    def is_pretrained(self) -> bool:
        """Whether the policy's features come from a first stage (also after loading a policy)."""
        return self._impl is not None and self._slot_policy.is_pretrained

    @abstractmethod
    def pretrain(
        self,
        dataset: Any,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> Any:
        """Stage 1: learns the features from the dataset.

        Args:
            dataset: anything that `fit` takes.
            experiment_name: name of the log folder; the class's name if None.
            with_timestamp: append the time to it.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw a progress bar.
            checkpoints: of the run, given by `fit`.
        """

    @contextmanager
    def _stage_logger(
        self,
        stage: str,
        n_steps_per_epoch: int,
        experiment_name: str | None,
        with_timestamp: bool,
        logger_adapter: LoggerAdapterFactory | None,
        checkpoints: Checkpoints | None,
    ) -> Iterator[D3RLPyLogger]:
        """A logger with a folder of its own, `<experiment>_<stage>`; holds back interrupts."""
        holding = nullcontext() if checkpoints is None else checkpoints.saving_on_interrupt()
        with (
            open_logger(
                self,
                logger_adapter or FileAdapterFactory(),
                f"{experiment_name or type(self).__name__}_{stage}",
                n_steps_per_epoch,
                with_timestamp,
            ) as logger,
            holding,
        ):
            yield logger

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
        if not self.is_pretrained:
            self.pretrain(
                buffer,
                experiment_name,
                with_timestamp,
                logger_adapter,
                show_progress,
                checkpoints,
            )

    def _prepare_source(self, source: DeviceReplayBuffer) -> DeviceReplayBuffer:
        network = self._slot_policy.features
        wanted = self._config.cache_features and not network.trains_queries(self._grad_step)
        if not wanted or source.features is not None:
            return source
        scaler = self._config.observation_scaler
        features = compute_features(
            network,
            source.observations,
            None if scaler is None else scaler.transform,
            self._config.precision,
            self._show_progress,
        )
        return source.with_features(features)

    def _compute(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        if self._impl is not None:
            self._slot_policy.features.freeze(self._grad_step)
        return super()._compute(batch)

    def _phase(self) -> object:
        return self._slot_policy.features.trains_queries(self._grad_step)

    @property
    def _slot_policy(self) -> SlotPolicy:
        assert self._impl is not None
        policy = self._impl.policy
        assert isinstance(policy, SlotPolicy)
        return policy


def log_row(logger: D3RLPyLogger, prefix: str, row: Mapping[str, float], epoch: int) -> None:
    """Logs everything of a row but `epoch` and `step`, which are the logger's own columns."""
    for name, value in row.items():
        if name not in ("epoch", "step"):
            logger.add_metric(f"{prefix}_{name}", value)
    logger.commit(epoch, int(row["step"]))
