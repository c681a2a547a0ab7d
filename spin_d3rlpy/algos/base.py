"""d3rlpy's verbs for MultiDiscrete actions, which every algorithm here shares."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from d3rlpy.algos.qlearning.explorers import Explorer
from d3rlpy.algos.utility import build_scalers_with_env
from d3rlpy.base import register_learnable
from d3rlpy.constants import LoggingStrategy
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import LOG, FileAdapterFactory, LoggerAdapterFactory
from d3rlpy.metrics import EvaluatorProtocol
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import GymEnv
from gymnasium.spaces import Box
from torch import nn

from spin_d3rlpy._compat import DiscreteView, fuse_adam, keep_whole_episodes
from spin_d3rlpy.algos.acting import TConfig, TImpl
from spin_d3rlpy.algos.config import SCALERS
from spin_d3rlpy.algos.fit import BestIs, FitSettings, Training
from spin_d3rlpy.algos.hooks import Timer, TrainableAlgo, no_timer
from spin_d3rlpy.algos.recorded import RecordedUpdate
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import BatchSource, imitation_batch
from spin_d3rlpy.data.online import create_replay_buffer
from spin_d3rlpy.errors import require_one_of
from spin_d3rlpy.fast import keep_freed_memory
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.policies.feature_cache import FeatureMiniBatch
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.checkpoints import DEFAULT_KEEP
from spin_d3rlpy.training.graphs import can_record
from spin_d3rlpy.training.progress import warn_of_interrupt
from spin_d3rlpy.training.work import WorkClock

Clock = Literal["wall", "cpu", "ops"]


class MultiDiscreteAlgo(TrainableAlgo[TImpl, TConfig]):
    """Base class of algorithms whose actions are integer arrays `(B, N)`; adds training.

    Arguments are those of `ActingAlgo`.
    """

    _recorded: RecordedUpdate | None = None
    _logged_reason: str | None = None  # why updates are not recorded, as the log says

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        """Registers a named algorithm with its config, for saved files."""
        super().__init_subclass__(**kwargs)
        if name is not None:
            config_class: Any = cls.config_class
            config_class.type_name, config_class.algo_class = name, cls
            register_learnable(config_class)

    def update(self, batch: Any) -> dict[str, float]:
        """Does one gradient step on a d3rlpy mini-batch or on an unscaled `TorchMiniBatch`.

        `fit` calls an override of this method, with a `TorchMiniBatch` on the training device.
        """
        if not isinstance(batch, TorchMiniBatch):
            batch = TorchMiniBatch.from_batch(
                batch, self._config.gamma, self.need_returns_to_go, self._device
            )
        return {k: v.item() for k, v in self._update_without_sync(batch).items()}

    def _update_without_sync(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        """`update` with metrics left on the device, valid until the next call."""
        # Cached features are a view into a dataset: batches of them come from `fit`, and so do
        # those with another batch for the policy.
        mixed = isinstance(batch, FeatureMiniBatch) or imitation_batch(batch) is not batch
        if self.compiled and not mixed:
            return self._finish_step(self._recorded_update().on_batch(batch))
        return self._finish_step(self.gradient_step(batch))

    def sample_and_update(
        self, source: BatchSource, measure: Timer = no_timer
    ) -> dict[str, torch.Tensor]:
        overridden = getattr(self.update, "__func__", None) is not MultiDiscreteAlgo.update
        recorded = self.compiled and source.is_on_one_device and not overridden
        if not recorded and self._config.compile_graph and can_record(self._device):
            self._log_why_not_recorded(overridden)
        with measure("sample_batch"):  # a recording draws its batches itself
            batch = None if recorded else source.sample_transition_batch(self.batch_size)
        with measure("algorithm_update"):
            if batch is None:
                return self._finish_step(self._recorded_update().on_source(source, self.batch_size))
            if overridden:
                metrics = self.update(batch)
                return {k: torch.tensor(v, dtype=torch.float64) for k, v in metrics.items()}
            return self._finish_step(self.gradient_step(batch))

    def _log_why_not_recorded(self, overridden: bool) -> None:
        reason = "observations or cached features are in host memory"
        if self.updates_by_rules:
            reason = "updates choose actions by rules"
        if self._enable_ddp or overridden:
            ddp = "several processes train one model"
            reason = ddp if self._enable_ddp else "update() is overridden"
        if reason != self._logged_reason:
            self._logged_reason = reason
            LOG.info("Updates are not recorded as a CUDA graph, but run one by one", reason=reason)

    def gradient_step(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        impl = self.require_built(SCALERS)
        keep_freed_memory()
        with autocast(self._device, self._config.precision):
            return impl.update_without_sync(self._scale(batch), self._grad_step)

    def _finish_step(self, metrics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Work after every gradient step, recorded or not."""
        assert self._impl is not None
        self._impl.after_update(self._grad_step)
        self._grad_step += 1
        return metrics

    def _recorded_update(self) -> RecordedUpdate:
        self.require_built()
        self._recorded = self._recorded or RecordedUpdate(self)
        return self._recorded

    def forget_recording(self) -> None:
        self._recorded = None

    def _scale(self, batch: TorchMiniBatch) -> TorchMiniBatch:
        changes: dict[str, Any] = {}
        if scaler := self._config.observation_scaler:
            for name in ("observations", "next_observations"):
                changes[name] = scaler.transform(getattr(batch, name))
        if reward_scaler := self._config.reward_scaler:
            changes["rewards"] = reward_scaler.transform(batch.rewards)
        if changes and imitation_batch(batch) is not batch:
            changes["imitation"] = self._scale(imitation_batch(batch))
        return dataclasses.replace(batch, **changes) if changes else batch

    def fit(
        self,
        dataset: Any,
        n_steps: int | None = None,
        n_steps_per_epoch: int = 10_000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logging_steps: int = 500,
        logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        save_interval: int = 1,
        evaluators: dict[str, EvaluatorProtocol] | None = None,
        callback: Callable[[Self, int, int], None] | None = None,
        epoch_callback: Callable[[Self, int, int], None] | None = None,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        checkpoint_interval: int = 10_000,
        keep_checkpoints: int = DEFAULT_KEEP,
        best_by: str | None = None,
        best_is: BestIs = "highest",
        patience: int | None = None,
        seconds: float | Budget | None = None,
        clock: Clock = "wall",
    ) -> list[tuple[int, dict[str, float]]]:
        """Trains on a dataset and returns `(epoch, metrics)` pairs.

        Arguments and errors are those of `fitter`, which documents them. Positional ones are in
        the order of d3rlpy's `fit`, which differs from that of its `fitter`.
        """
        epochs = self.fitter(
            dataset,
            n_steps=n_steps,
            n_steps_per_epoch=n_steps_per_epoch,
            logging_steps=logging_steps,
            logging_strategy=logging_strategy,
            experiment_name=experiment_name,
            with_timestamp=with_timestamp,
            logger_adapter=logger_adapter,
            show_progress=show_progress,
            save_interval=save_interval,
            evaluators=evaluators,
            callback=callback,
            epoch_callback=epoch_callback,
            checkpoint_dir=checkpoint_dir,
            resume=resume,
            checkpoint_interval=checkpoint_interval,
            keep_checkpoints=keep_checkpoints,
            best_by=best_by,
            best_is=best_is,
            patience=patience,
            seconds=seconds,
            clock=clock,
        )
        return list(epochs)

    def fitter(
        self,
        dataset: Any,
        n_steps: int | None = None,
        n_steps_per_epoch: int = 10_000,
        logging_steps: int = 500,
        logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        save_interval: int = 1,
        evaluators: dict[str, EvaluatorProtocol] | None = None,
        callback: Callable[[Self, int, int], None] | None = None,
        epoch_callback: Callable[[Self, int, int], None] | None = None,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        checkpoint_interval: int = 10_000,
        keep_checkpoints: int = DEFAULT_KEEP,
        best_by: str | None = None,
        best_is: BestIs = "highest",
        patience: int | None = None,
        seconds: float | Budget | None = None,
        clock: Clock = "wall",
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Trains epoch by epoch, like d3rlpy's `fitter`, with these differences.

        - Exactly `n_steps` steps are made; d3rlpy drops a shorter last epoch.
        - The dataset is moved to the training device once and batches are drawn there.
        - Losses are fetched only when logged. `update` is called only if overridden, with a
          `TorchMiniBatch` on the training device instead of a `TransitionMiniBatch`.
        - Timings do not wait for the device: on a GPU `time_step`, `time_sample_batch` and
          `time_algorithm_update` are launch times. With `compile_graph`, `time_algorithm_update`
          includes drawing the batch. `time_epoch` is the whole epoch's.
        - Two runs never share a log folder.

        Args:
            dataset: a dataset's name, a `minari.MinariDataset`, a d3rlpy `ReplayBuffer`, a
                `DeviceReplayBuffer`, or the path of a file of d3rlpy 1.x (`.h5`).
            n_steps: gradient steps; the config's `n_steps` if None.
            n_steps_per_epoch: steps between evaluations, logging and saving.
            logging_steps: steps between logs if `logging_strategy` is STEPS.
            logging_strategy: when metrics are logged.
            experiment_name: name of the log folder; the class's name if None.
            with_timestamp: append the time to it.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw progress bars.
            save_interval: epochs between saved models.
            evaluators: d3rlpy evaluators by metric name. They get `dataset` if it is a replay
                buffer, otherwise the buffer made of it.
            callback: called with (algo, epoch, step) after every step.
            epoch_callback: the same after every epoch.
            checkpoint_dir: folder of checkpoints, written at an interval, at SIGINT (Ctrl-C) and
                SIGTERM and at the end; None for no checkpoints. With `enable_ddp`, process 0 reads
                and writes them, not at signals.
            resume: continue from the newest checkpoint, if any, with the weights and metrics of an
                uninterrupted run (bit for bit on a CPU). Results of earlier epochs come first;
                loggers get only later ones.
            checkpoint_interval: steps of any stage between checkpoints.
            keep_checkpoints: number of newest checkpoints to keep.
            best_by: name of the evaluator that decides the best epoch. With `checkpoint_dir`, its
                policy is saved as `best.safetensors`, for `load_policy`.
            best_is: whether the highest or the lowest value is best.
            patience: stop after this many epochs without a better one, in the last epoch's state.
            seconds: training time instead of `n_steps`, preparations and first stages included,
                evaluations not. Schedules and the ten epochs follow the clock. On the CPU the
                first steps find the fastest number of threads. Or a `Budget`.
            clock: of `seconds`: `"wall"`, or `"cpu"`, the process's time on all cores, by which
                runs on busy machines compare, or `"ops"`, nominal seconds of the
                operations made, by which runs on different machines compare.

        Yields:
            `(epoch, metrics)`; metrics include `step` and `seconds` (of all steps so far), with
            `clock="ops"` also the real `cpu_seconds`.

        Raises:
            ValueError: arguments do not fit each other, or learning rates have two schedules.
            InvalidCheckpointError: checkpoints are damaged, of another run, or exist although
                `resume` is False.
            CheckpointWriteError: a checkpoint cannot be written; earlier ones remain.
            FolderInUseError: another run is using `checkpoint_dir` or the log folder.
            DivergenceError: losses or weights are NaN or infinite; checked at logging and
                checkpoints. The last good checkpoint remains.
            InvalidDatasetError: the dataset is unusable.
            NvecMismatchError: the dataset has another action space than the algorithm.
        """
        settings = FitSettings(
            n_steps=self._config.n_steps if n_steps is None else n_steps,
            n_steps_per_epoch=n_steps_per_epoch,
            logging_steps=logging_steps,
            logging_strategy=logging_strategy,
            experiment_name=experiment_name or type(self).__name__,
            with_timestamp=with_timestamp,
            logger_adapter=logger_adapter or FileAdapterFactory(),
            show_progress=show_progress,
            save_interval=save_interval,
            evaluators=evaluators or {},
            callback=callback,
            epoch_callback=epoch_callback,
            checkpoint_dir=checkpoint_dir,
            resume=resume,
            checkpoint_interval=checkpoint_interval,
            keep_checkpoints=keep_checkpoints,
            best_by=best_by,
            best_is=best_is,
            patience=patience,
            budget=self._budget(seconds, clock),
        )
        with settings.budget.counting():
            buffer = self._as_buffer(dataset)
            self._build_with_buffer(buffer)
            training = self.hold_out(buffer)
        # Evaluators get what they would get from d3rlpy.
        for_evaluators = dataset if isinstance(dataset, ReplayBufferBase) else buffer
        yield from Training(self, training, for_evaluators, settings).epochs()

    def _budget(self, seconds: float | Budget | None, clock: Clock) -> Budget:
        require_one_of("clock", clock, Clock)
        if clock != "wall" and (seconds is None or isinstance(seconds, Budget)):
            raise ValueError(
                f"clock={clock!r} is for seconds=<a number>; a Budget has its own clock."
            )
        if isinstance(seconds, Budget):
            budget = seconds
        elif clock == "ops":
            budget = Budget(seconds, WorkClock())
        else:
            budget = Budget(seconds, time.process_time if clock == "cpu" else time.monotonic)
        if isinstance(budget.clock, WorkClock) and self.compiled:
            raise ValueError(
                "Operations within a recorded CUDA graph cannot be counted. With clock='ops', "
                f"expected compile_graph=False, got {self._config.compile_graph!r}."
            )
        if self._enable_ddp and budget.seconds:
            raise ValueError("seconds= is for one process: each would count its own steps.")
        return budget

    def create_optim(
        self, factory: OptimizerFactory, modules: Iterable[tuple[str, nn.Module]], rate: float
    ) -> OptimizerWrapper:
        """Returns an optimizer of these networks with a learning rate."""
        return fuse_adam(factory.create(modules, lr=rate, compiled=self.compiled))

    def fit_online(
        self,
        env: GymEnv,
        buffer: ReplayBufferBase | None = None,
        explorer: Explorer | None = None,
        n_steps: int = 1_000_000,
        n_steps_per_epoch: int = 10_000,
        update_interval: int = 1,
        n_updates: int = 1,
        update_start_step: int = 0,
        random_steps: int = 0,
        eval_env: GymEnv | None = None,
        eval_epsilon: float = 0.0,
        eval_n_trials: int = 10,
        save_interval: int = 1,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logging_steps: int = 500,
        logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        callback: Callable[[Self, int, int], None] | None = None,
    ) -> None:
        """Trains in an environment with MultiDiscrete actions, by d3rlpy's loop.

        Args:
            env: where it acts.
            buffer: of `spin_d3rlpy.create_replay_buffer`; a new one of a million steps if None.
                Episodes may have any length.
            explorer: `MultiDiscreteEpsilonGreedy`; None acts by the policy's samples.
            n_steps: in the environment.
            n_steps_per_epoch: steps between evaluations, logging and saving.
            update_interval: steps between updates.
            n_updates: gradient steps of an update.
            update_start_step: steps before the first update.
            random_steps: first steps, with random actions.
            eval_env: for an evaluation after each epoch; None makes none.
            eval_epsilon: share of random actions there.
            eval_n_trials: episodes there.
            save_interval: epochs between saved models.
            experiment_name: name of the log folder; by default of the class.
            with_timestamp: append the time to it.
            logging_steps: steps between logs if `logging_strategy` is STEPS.
            logging_strategy: when metrics are logged.
            logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
            show_progress: draw a progress bar.
            callback: called with (algo, epoch, step) after every step.

        Raises:
            RuntimeError: a scaler must first be fitted to data.
            InvalidActionSpaceError: the action space is of another kind, or the explorer's actions
                are not in it.
        """
        self._build_for_acting(env)
        super().fit_online(
            cast(Any, DiscreteView(cast(Any, env))),
            _growing(buffer, env),
            explorer,
            n_steps=n_steps,
            n_steps_per_epoch=n_steps_per_epoch,
            update_interval=update_interval,
            n_updates=n_updates,
            update_start_step=update_start_step,
            random_steps=random_steps,
            eval_env=None if eval_env is None else cast(Any, DiscreteView(cast(Any, eval_env))),
            eval_epsilon=eval_epsilon,
            eval_n_trials=eval_n_trials,
            save_interval=save_interval,
            experiment_name=experiment_name,
            with_timestamp=with_timestamp,
            logging_steps=logging_steps,
            logging_strategy=logging_strategy,
            logger_adapter=logger_adapter or FileAdapterFactory(),
            show_progress=show_progress,
            callback=callback,
        )

    def collect(
        self,
        env: GymEnv,
        buffer: ReplayBufferBase | None = None,
        explorer: Explorer | None = None,
        deterministic: bool = False,
        n_steps: int = 1_000_000,
        show_progress: bool = True,
    ) -> ReplayBufferBase:
        """Collects data in an environment with MultiDiscrete actions, by d3rlpy's loop.

        Ctrl-C ends it early: what is collected so far is returned, with a warning. The last step of
        an episode that a time limit ended has no next observation in d3rlpy's buffer, and is not
        learned from; `spin_d3rlpy.collect` keeps it.

        Args:
            env: where it acts.
            buffer: see `fit_online`.
            explorer: see `fit_online`.
            deterministic: take greedy actions.
            n_steps: in the environment.
            show_progress: draw a progress bar.

        Raises:
            KeyboardInterrupt: Ctrl-C before the first transition.
            RuntimeError: see `fit_online`.
            InvalidActionSpaceError: see `fit_online`.
        """
        self._build_for_acting(env)
        buffer = _growing(buffer, env)
        before = buffer.transition_count
        view: Any = DiscreteView(cast(Any, env))
        try:
            super().collect(view, buffer, explorer, deterministic, n_steps, show_progress)
        except KeyboardInterrupt:
            buffer.clip_episode(False)
            if buffer.transition_count == before:
                raise
            warn_of_interrupt(f"{buffer.transition_count - before:,} transitions")
        return buffer

    def _build_for_acting(self, env: GymEnv) -> None:
        if self._impl is None:
            self.build_with_env(env)
        space = env.observation_space
        if isinstance(space, Box) and space.is_bounded():
            with suppress(NotImplementedError):  # of scalers that need data
                build_scalers_with_env(self, env)
        self.require_built(SCALERS)

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        return buffer.for_imitation(self._config.imitation_weights, self.imitation_rows)

    @property
    def imitation_rows(self) -> int | None:
        """Rows of a separate mini-batch for the policy; None if it takes the critics'."""
        rows: int | None = getattr(self._config, "imitation_batch_size", None)
        return rows

    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource:
        share = getattr(self._config, "monte_carlo_share", 0.0)
        return source.with_horizon(self._config.gamma if progress < share else None)


def _growing(buffer: ReplayBufferBase | None, env: GymEnv) -> ReplayBufferBase:
    """Returns a buffer that episodes of any length can be added to."""
    if buffer is None:
        return create_replay_buffer(cast(Any, env))
    keep_whole_episodes(buffer)
    return buffer
