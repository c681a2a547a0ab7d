"""SPIN's first stage inside any objective: pre-train or take over an ASM, then train as usual."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from d3rlpy.base import DeviceArg
from d3rlpy.logging import LoggerAdapterFactory
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy.algos.two_stage import TwoStageMixin, log_row
from spin_d3rlpy.asm import (
    ActionStructureModel,
    load_asm,
    pretrain,
    save_asm,
)
from spin_d3rlpy.asm.pretraining import PretrainingEpoch
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.scalers import scaler_from_dict, scaler_to_dict

ASM_FILE = "asm.safetensors"  # in a run's folder of checkpoints


class SPINMixin(TwoStageMixin):
    """Adds the Action Structure Model to an objective's algorithm.

    Args:
        config: the configuration; defaults if None.
        device: as in d3rlpy.
        enable_ddp: several processes train one model.
        asm: a pre-trained model or the path of its file. Without one, `fit` pre-trains one first.
        **fields: config fields; those of `SPINEncoderFactory` (`transformer`, `query_init`,
            `train_queries`, ...) are taken, too.

    Raises:
        ValueError: features are to be cached although the queries are always trained.
    """

    def __init__(
        self,
        config: Any = None,
        device: DeviceArg = False,
        enable_ddp: bool = False,
        asm: ActionStructureModel | str | Path | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(config, device, enable_ddp, **fields)
        factory = self._config.actor_encoder_factory
        if self._config.cache_features and getattr(factory, "train_queries", False) is True:
            raise ValueError(
                "cache_features needs queries that no longer change. Pass train_queries=False, or "
                "train_queries=k to train them for the first k steps."
            )
        self._asm: ActionStructureModel | None = None
        if asm is not None:
            self.set_asm(asm)

    @property
    def asm(self) -> ActionStructureModel | None:
        """The model the policy's trunk was taken from, if it was made or given in this process."""
        return self._asm

    def set_asm(self, asm: ActionStructureModel | str | Path) -> None:
        """Takes over a pre-trained ASM: its trunk, sizes and observation scaler.

        Raises:
            NvecMismatchError: it is of another action space, size or observation scaling than
                this algorithm was configured with.
        """
        if not isinstance(asm, ActionStructureModel):
            asm = load_asm(asm)
        config = self._config
        if config.nvec is None:
            config.nvec = list(asm.nvec)
        require_same_nvec(config.nvec, asm.nvec, type(self).__name__, "the ASM")
        self._adopt_scaling(asm)
        if config.actor_encoder_factory.transformer != asm.config:
            config.actor_encoder_factory = dataclasses.replace(
                config.actor_encoder_factory, transformer=asm.config
            )
            if self._impl is not None:
                raise NvecMismatchError(
                    f"{type(self).__name__} is built with other sizes than the ASM's "
                    f"{asm.config}. Pass the ASM before building."
                )
        self._asm = asm
        if self._impl is not None:
            self._slot_policy.load_asm(asm)

    def _adopt_scaling(self, asm: ActionStructureModel) -> None:
        """Takes over the ASM's observation scaler, or checks that it is the one in use."""
        scaler, encoded = self._config.observation_scaler, asm.observation_scaler
        if scaler is None or (
            not scaler.built and encoded is not None and scaler.get_type() == encoded["type"]
        ):
            self._config.observation_scaler = (
                None if encoded is None else scaler_from_dict(encoded, asm.observation_size)
            )
        elif not scaler.built or scaler_to_dict(scaler) != encoded:
            raise NvecMismatchError(
                "The ASM was pre-trained with other observation scaling "
                f"({encoded and encoded['type']}) than this algorithm is configured with "
                f"({scaler.get_type()}). Leave observation_scaler unset to take over the ASM's."
            )

    def create_impl(self, observation_shape: Shape, action_size: int) -> None:
        """Builds the networks and loads the ASM's trunk if there is one."""
        if self._asm is not None and self._asm.observation_size != observation_shape[0]:
            raise NvecMismatchError(
                f"The ASM was pre-trained on observations of length {self._asm.observation_size}, "
                f"not {observation_shape[0]}."
            )
        super().create_impl(observation_shape, action_size)
        if self._asm is not None:
            self._slot_policy.load_asm(self._asm)

    def pretrain(
        self,
        dataset: Any,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[PretrainingEpoch]:
        """Stage 1: pre-trains a new ASM on the dataset's states and actions and takes it over.

        Logs `asm_loss`, `asm_accuracy`, `asm_seconds`, `asm_samples` and, with
        `pretraining.validation_share`, `asm_validation_<name>` per epoch through the d3rlpy
        logger, in a folder of its own, and saves `asm_<step>.safetensors` there every
        `pretraining.checkpoint_interval` epochs if the logger writes files.

        Args:
            dataset: anything that `fit` takes.
            experiment_name: name of the log folder; the class's name if None.
            with_timestamp: append the time to it.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw a progress bar.
            checkpoints: of the run, given by `fit`.

        Returns:
            One entry per epoch.
        """
        buffer = self._as_buffer(dataset)
        self._build_with_buffer(buffer)
        config = self._config
        asm = ActionStructureModel(
            buffer.observations.shape[1], config.nvec, config.actor_encoder_factory.transformer
        ).to(torch.device(self._device))
        scaler = config.observation_scaler
        asm.observation_scaler = scaler_to_dict(scaler)
        held_out = None
        if config.pretraining.validation_share:
            buffer, held_out = buffer.split(config.pretraining.validation_share)
        last_step = config.pretraining.n_updates(buffer.transition_count)
        per_epoch = -(-buffer.transition_count // config.pretraining.batch_size)
        with self._stage_logger(
            "pretraining", per_epoch, experiment_name, with_timestamp, logger_adapter, checkpoints
        ) as logger:
            folder = getattr(logger.adapter, "logdir", None)

            def on_epoch(epoch: PretrainingEpoch) -> None:
                log_row(logger, "asm", epoch.row(), epoch.epoch)
                due = epoch.epoch % config.pretraining.checkpoint_interval == 0
                if folder is not None and (due or epoch.step == last_step):
                    save_asm(asm, Path(folder) / f"asm_{epoch.step}.safetensors")

            epochs = pretrain(
                asm,
                buffer,
                config.pretraining,
                transform=None if scaler is None else scaler.transform,
                on_epoch=on_epoch,
                show_progress=show_progress,
                checkpoints=checkpoints,
                held_out=held_out,
                enable_ddp=self._enable_ddp,
                compile_graph=self.compiled,
            )
        self.set_asm(asm)
        if checkpoints is not None and checkpoints.writes:
            save_asm(asm, checkpoints.folder / ASM_FILE)
        return epochs

    def support(self, x: Observation, action: NDArray) -> NDArray:
        """Says how well the ASM's data supports each sub-action beside the others.

        Args:
            x: observations `(B, obs)`.
            action: `(B, N)`.

        Returns:
            `log p(a_i | s, all other sub-actions)`, `(B, N)`; their sum is the action's masked
            pseudo-log-likelihood (`spin_d3rlpy.asm.support`).

        Raises:
            InvalidObservationError: wrong shape, or not finite.
            InvalidActionSpaceError: actions that are not in the action space.
            RuntimeError: there is no ASM in this process. Saved policies have its trunk only:
                pass the ASM's file to `set_asm`.
        """
        observations = self._check_observations(x)
        actions = self._check_actions(action, len(observations))
        if self._asm is None:
            raise RuntimeError(
                "There is no ASM in this process; a saved policy holds its trunk only. Call "
                "set_asm with the file of the one it was trained on."
            )
        inputs = torch.as_tensor(observations, dtype=torch.float32, device=self._device)
        scaler = self._config.observation_scaler
        scores = self._asm.log_likelihood(
            inputs if scaler is None else scaler.transform(inputs),
            torch.as_tensor(actions, dtype=torch.int64, device=self._device),
        )
        return scores.per_slot.cpu().numpy()

    def _after_resume(self, checkpoints: Checkpoints) -> None:
        # The policy has its weights already; the model itself is kept for the user.
        path = checkpoints.folder / ASM_FILE
        if checkpoints.stage != "pretraining" and self._asm is None and path.exists():
            self._asm = load_asm(path, self._device)
