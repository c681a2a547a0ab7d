"""Implementation of `fit`: first stages, then the objective's steps, with d3rlpy's logs."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from d3rlpy.base import save_config
from d3rlpy.constants import LoggingStrategy
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import D3RLPyLogger, LoggerAdapterFactory

from spin_d3rlpy._compat import has_schedule, log_folders
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.algos.files import save_policy
from spin_d3rlpy.algos.hooks import TrainableAlgo
from spin_d3rlpy.algos.impl import MultiDiscreteImpl
from spin_d3rlpy.algos.notebook_logs import BriefLogger, NotebookLogger, is_notebook
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import BatchSource
from spin_d3rlpy.errors import InvalidCheckpointError, require_fields, require_one_of
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.distributed import ProcessGroup
from spin_d3rlpy.training.graphs import CompileGraph
from spin_d3rlpy.training.loop import Loop, Metrics, Run, StageLog
from spin_d3rlpy.training.schedules import Schedule
from spin_d3rlpy.training.work import WorkClock

AnyAlgo = TrainableAlgo[Any, Any]
TAlgo = TypeVar("TAlgo", bound=AnyAlgo)


@contextmanager
def open_logger(
    algo: AnyAlgo,
    name: str,
    with_timestamp: bool,
    factory: LoggerAdapterFactory,
    epoch_steps: int,
) -> Iterator[D3RLPyLogger]:
    """Yields a logger that has logged the configuration."""
    stem = f"{name}_{datetime.now():%Y%m%d%H%M%S}" if with_timestamp else name
    for number in itertools.count(1):  # of runs that start in the same second
        name = stem if number == 1 else f"{stem}_{number}"
        with suppress(FileExistsError):
            for folder in log_folders(factory, name):
                folder.mkdir(parents=True, exist_ok=not with_timestamp)
            break
    with ExitStack() as stack:
        for folder in log_folders(factory, name):
            stack.enter_context(exclusive_folder(folder, wait=False))
        logger_class = NotebookLogger if is_notebook() else BriefLogger
        logger = logger_class(algo, factory, name, epoch_steps, with_timestamp=False)
        save_config(algo, logger)
        yield stack.enter_context(closing(logger))


class LoggerLog(StageLog):
    """Logs rows as prefixed metrics of a d3rlpy logger."""

    def __init__(self, logger: D3RLPyLogger, prefix: str) -> None:
        self._logger, self._prefix = logger, prefix
        folder = getattr(logger.adapter, "logdir", None)
        self.folder = None if folder is None else Path(folder)

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name not in ("epoch", "step"):  # the logger's own columns
                self._logger.add_metric(f"{self._prefix}_{name}", value)
        self._logger.commit(int(row["epoch"]), int(row["step"]))


BestIs = Literal["highest", "lowest"]
BEST_FILE = "best.safetensors"  # in a run's folder of checkpoints
# Rows of observations that tell datasets apart: hashing all of a large one would take seconds.
IDENTITY_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """The arguments of `MultiDiscreteAlgo.fitter`, which explains them."""

    n_steps: int
    n_steps_per_epoch: int
    logging_steps: int
    logging_strategy: LoggingStrategy
    experiment_name: str
    with_timestamp: bool
    logger_adapter: LoggerAdapterFactory
    show_progress: bool
    save_interval: int
    evaluators: dict[str, Any]
    callback: Callable[[Any, int, int], None] | None
    epoch_callback: Callable[[Any, int, int], None] | None
    checkpoint_dir: str | Path | None
    resume: bool
    checkpoint_interval: int
    keep_checkpoints: int
    best_by: str | None
    best_is: BestIs
    patience: int | None
    budget: Budget

    def __post_init__(self) -> None:
        require_one_of("best_is", self.best_is, BestIs)
        if self.patience is not None and self.best_by is None:
            raise ValueError("patience needs best_by=, the evaluator that it waits for.")
        require_fields(
            self,
            n_steps=(self.n_steps >= 1, "of at least 1"),
            n_steps_per_epoch=(self.n_steps_per_epoch >= 1, "of at least 1"),
            patience=(self.patience is None or self.patience >= 1, "of at least 1"),
            best_by=(
                self.best_by is None or self.best_by in self.evaluators,
                f"to be one of the evaluators ({', '.join(self.evaluators) or 'none'})",
            ),
        )
        if self.best_by is not None and self.patience is None and self.checkpoint_dir is None:
            raise ValueError(
                "best_by needs checkpoint_dir=, where the best policy is kept, or patience=."
            )


def create_run(
    algo: AnyAlgo,
    experiment_name: str,
    with_timestamp: bool,
    logger_adapter: LoggerAdapterFactory,
    show_progress: bool,
    checkpoints: Checkpoints | None = None,
    budget: Budget | None = None,
) -> Run:
    """Returns how an algorithm's stages are run; each logs in a folder with its name."""

    @contextmanager
    def log(stage: str, prefix: str, epoch_steps: int) -> Iterator[StageLog]:
        name = f"{experiment_name}_{stage}"
        with open_logger(algo, name, with_timestamp, logger_adapter, epoch_steps) as logger:
            yield LoggerLog(logger, prefix)

    graph: CompileGraph = algo.config.compile_graph if algo.compiled else False
    return Run(show_progress, checkpoints, algo.enable_ddp, graph, log, budget or Budget())


class Training(Generic[TAlgo]):
    """One call of `fit`: the first stages of a built algorithm, then the objective's steps.

    What an algorithm does differently, it does in the hooks of `TrainableAlgo`.

    Args:
        algo: the algorithm, built.
        buffer: the dataset to train on, on the algorithm's device.
        for_evaluators: the dataset that evaluators get.
        settings: the arguments of `fit`.

    Raises:
        ValueError: the learning rates have two schedules.
    """

    def __init__(
        self,
        algo: TAlgo,
        buffer: DeviceReplayBuffer,
        for_evaluators: ReplayBufferBase,
        settings: FitSettings,
    ) -> None:
        self._algo, self._buffer = algo, buffer
        self._for_evaluators, self._settings = for_evaluators, settings
        self._schedule = Schedule(algo.config.lr_schedule, algo.config.lr_warmup)
        if not self._schedule.is_constant and any(map(has_schedule, self._impl.optimizers)):
            raise ValueError(
                "An optimizer has a scheduler (lr_scheduler_factory) and the algorithm another "
                f"(lr_schedule={self._schedule.name!r}, lr_warmup={self._schedule.warmup}): leave "
                "one out."
            )

    @property
    def _impl(self) -> MultiDiscreteImpl:
        assert self._algo.impl is not None
        impl: MultiDiscreteImpl = self._algo.impl
        return impl

    def epochs(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Trains and yields `(epoch, metrics)`, those of resumed epochs first.

        Raises:
            Exception: see `MultiDiscreteAlgo.fitter`, which documents all of them.
        """
        algo, settings = self._algo, self._settings
        algo.caches_features = None
        with ExitStack() as stack:
            checkpoints = self._open_checkpoints(stack)
            run = create_run(
                algo,
                settings.experiment_name,
                settings.with_timestamp,
                settings.logger_adapter,
                settings.show_progress,
                checkpoints,
                settings.budget,
            )
            algo.begin_run(run)
            if checkpoints is None or checkpoints.stage != "training":
                algo.train_first_stages(self._buffer, run)
            with settings.budget.counting():  # features of the whole dataset may be computed here
                source = algo.batch_source_at(algo.batch_source(self._buffer), 0.0)
            loop = self._create_loop(run)
            stack.callback(algo.forget_recording)
            yield from list(enumerate(loop.rows, 1))
            logger = stack.enter_context(
                open_logger(
                    algo,
                    settings.experiment_name,
                    settings.with_timestamp,
                    settings.logger_adapter,
                    settings.n_steps_per_epoch,
                )
            )
            step = self._step_of(loop, source, logger)
            for epoch in loop.epochs(step, self._after_step_of(loop, logger)):
                yield epoch, self._end_epoch(epoch, loop, logger, checkpoints)
            algo.end_run()
            for evaluate in settings.evaluators.values():
                if hasattr(evaluate, "compare_with_data"):
                    evaluate.compare_with_data(self._for_evaluators)

    def _create_loop(self, run: Run) -> Loop:
        return Loop(
            run,
            "training",
            self._settings.n_steps,
            self._settings.n_steps_per_epoch,
            device=self._buffer.device,
            patience=self._settings.patience,
            optimizers=[optim.optim for optim in self._impl.optimizers],
            schedule=self._schedule,
        )

    def _step_of(
        self, loop: Loop, source: BatchSource, logger: D3RLPyLogger
    ) -> Callable[[], Metrics]:
        """Returns a gradient step on batches of `source`, which may change during the run."""
        algo = self._algo

        def step() -> Metrics:
            nonlocal source
            with logger.measure_time("step"):
                source = algo.batch_source_at(source, loop.progress)
                return algo.sample_and_update(source, logger.measure_time)

        return step

    def _after_step_of(self, loop: Loop, logger: D3RLPyLogger) -> Callable[[int], None]:
        """Returns what follows a step of an epoch: the log and the user's callback."""
        settings = self._settings
        by_step = settings.logging_strategy != LoggingStrategy.EPOCH

        def after_step(epoch: int) -> None:
            if by_step and loop.step % settings.logging_steps == 0:
                _add_metrics(logger, loop.take_losses())
                loop.logged = logger.commit(epoch, loop.step)
            if settings.callback:
                settings.callback(self._algo, epoch, loop.step)

        return after_step

    def _end_epoch(
        self, epoch: int, loop: Loop, logger: D3RLPyLogger, checkpoints: Checkpoints | None
    ) -> dict[str, float]:
        """Evaluates, logs and saves; returns the epoch's row."""
        algo, settings = self._algo, self._settings
        _add_metrics(logger, {"time_epoch": loop.epoch_seconds, **loop.take_losses()})
        if settings.epoch_callback:
            settings.epoch_callback(algo, epoch, loop.step)
        if settings.evaluators or loop.is_over(epoch):
            loop.test(algo.before_evaluation, epoch)
        measured = {
            name: evaluate(algo, self._for_evaluators)
            for name, evaluate in settings.evaluators.items()
        }
        _add_metrics(logger, measured)
        if settings.logging_strategy == LoggingStrategy.EPOCH:
            loop.logged = logger.commit(epoch, loop.step)
        if epoch % settings.save_interval == 0:
            logger.save_model(loop.step, algo)
        score = None
        if settings.best_by is not None:
            score = measured[settings.best_by] * (1 if settings.best_is == "highest" else -1)
            if checkpoints is not None and checkpoints.writes and loop.is_best(score):
                save_policy(algo, checkpoints.folder / BEST_FILE)
        budget = settings.budget
        counted = {"step": loop.step, "seconds": budget.spent}
        if isinstance(budget.clock, WorkClock):
            counted["cpu_seconds"] = budget.cpu_seconds
        return loop.add_row({**loop.logged, **measured, **counted}, score)

    def _open_checkpoints(self, stack: ExitStack) -> Checkpoints | None:
        """Opens the run's checkpoints, if any, until the stack's end; loads the newest networks."""
        algo, settings = self._algo, self._settings
        if settings.checkpoint_dir is None:
            return None
        parts = self._impl.modules.create_checkpointer(self._impl.device).modules

        def shared_state() -> dict[str, Any]:
            networks = {name: part.state_dict() for name, part in parts.items()}
            return {
                "networks": networks,
                "grad_step": algo.grad_step,
                "caches_features": algo.caches_features,
            }

        identity = run_identity(algo.config, self._buffer)
        checkpoints = Checkpoints(
            settings.checkpoint_dir,
            settings.checkpoint_interval,
            identity | {"n_steps_per_epoch": settings.n_steps_per_epoch},
            shared_state,
            ProcessGroup() if algo.enable_ddp else None,
            settings.keep_checkpoints,
        )
        stack.enter_context(checkpoints)
        shared = checkpoints.start(settings.resume)
        if shared is None:
            return checkpoints
        try:
            for name, part in parts.items():
                part.load_state_dict(shared["networks"][name])
            algo.set_grad_step(int(shared["grad_step"]))
            algo.caches_features = shared.get("caches_features")
        except Exception as error:  # an untrusted file can cause any error
            raise InvalidCheckpointError(
                f"The checkpoint in {checkpoints.folder} lacks a part of this algorithm's state "
                f"({error}). Remove the folder to start over."
            ) from error
        algo.resume_from(checkpoints)
        return checkpoints


def _add_metrics(logger: D3RLPyLogger, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        logger.add_metric(name, value)


def run_identity(config: MultiDiscreteConfig, buffer: DeviceReplayBuffer) -> dict[str, Any]:
    """Returns the values that a resumed run must share with its checkpoint."""
    digest = hashlib.sha256()
    # Every k-th observation is enough to tell scaled ones from others.
    step = max(1, len(buffer.observations) // IDENTITY_ROWS)
    observations = buffer.observations[::step].contiguous()
    for array in (buffer.rewards, buffer.actions, buffer.terminals, observations):
        digest.update(array.cpu().numpy().data)
    fields = json.loads(config.serialize())
    del fields["n_steps"]  # a run may be made longer
    fields["compile_graph"] = False  # results do not depend on it
    return {
        "algorithm": config.get_type(),
        "config": fields,
        "transitions": buffer.transition_count,
        "data": digest.hexdigest(),
    }
