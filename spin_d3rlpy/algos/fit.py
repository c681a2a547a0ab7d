"""Implementation of `fit`: first stages, then the objective's steps, with d3rlpy's logs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from d3rlpy.base import save_config
from d3rlpy.constants import LoggingStrategy
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import D3RLPyLogger, FileAdapterFactory

from spin_d3rlpy._compat import has_schedule, log_folders
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.algos.impl import MultiDiscreteImpl
from spin_d3rlpy.algos.notebook_logs import BriefLogger, NotebookLogger, is_notebook
from spin_d3rlpy.algos.options import FitOptions, RunOptions
from spin_d3rlpy.algos.saving import save_policy
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import BatchSource
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.training.budget import Budget, create_clock
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.distributed import ProcessGroup
from spin_d3rlpy.training.graphs import CompileGraph
from spin_d3rlpy.training.loop import Loop, Metrics, Run, StageLog
from spin_d3rlpy.training.schedules import Schedule
from spin_d3rlpy.training.work import WorkClock

Timer = Callable[[str], AbstractContextManager[None]]
BEST_FILE = "best.safetensors"  # in a run's folder of checkpoints
# Rows of observations that tell datasets apart: hashing all of a large one would take seconds.
IDENTITY_ROWS = 4096


class Trainable(Protocol):
    """What a run calls of a built algorithm: the hooks that another package's can override.

    In the order of a run: `hold_out`, `resume_from` (of a resumed run), `begin_run`,
    `train_first_stages`, `batch_source`, `checkpointed_parts`, then in every step
    `batch_source_at` and `sample_and_update`, after every epoch `before_evaluation`, at times
    `spend_the_rest` (in a run for a time) and `test_critics`, at last `end_run`. An override calls
    `super()` first, unless `MultiDiscreteAlgo`'s docstring says otherwise.

    Attributes:
        caches_features: whether features of the whole dataset are cached; None until a run has
            decided. Checkpoints keep it, so that a resumed run does what the interrupted one did.
        counts_operations: whether the run's clock counts operations, which no recording may hide.
    """

    caches_features: bool | None
    counts_operations: bool

    @property
    def config(self) -> Any: ...
    @property
    def impl(self) -> Any: ...
    @property
    def compiled(self) -> bool: ...
    @property
    def enable_ddp(self) -> bool: ...
    @property
    def grad_step(self) -> int: ...
    def set_grad_step(self, grad_step: int) -> None: ...
    def resume_from(self, checkpoints: Checkpoints) -> None: ...
    def begin_run(self, run: Run) -> None: ...
    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None: ...
    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource: ...
    def checkpointed_parts(self) -> Mapping[str, Any]: ...
    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource: ...
    def sample_and_update(self, source: BatchSource, measure: Timer) -> dict[str, torch.Tensor]: ...
    def before_evaluation(self) -> None: ...
    def test_critics(self) -> None: ...
    def spend_the_rest(self) -> float: ...
    def end_run(self) -> None: ...
    def forget_recording(self) -> None: ...


def create_budget(algo: Trainable, options: RunOptions) -> Budget:
    """Returns a budget of the seconds that a run was given, or the one that it was given.

    Raises:
        ValueError: `seconds` and `clock` fit neither each other nor the algorithm.
    """
    given = options.seconds
    if options.clock != "wall" and (given is None or isinstance(given, Budget)):
        raise ValueError(
            f"clock={options.clock!r} is for seconds=<a number>; a Budget has its own clock."
        )
    budget = given if isinstance(given, Budget) else Budget(given, create_clock(options.clock))
    algo.counts_operations = False  # of an earlier run
    counts = isinstance(budget.clock, WorkClock)
    if counts and algo.compiled and algo.config.compile_graph is True:
        raise ValueError(
            "Operations within a recorded CUDA graph cannot be counted. With clock='ops', "
            "expected compile_graph='auto' or False, got True."
        )
    algo.counts_operations = counts
    if algo.enable_ddp and budget.seconds:
        raise ValueError("seconds= is for one process: each would count its own steps.")
    return budget


@contextmanager
def open_logger(
    algo: Trainable, options: RunOptions, epoch_steps: int, stage: str = ""
) -> Iterator[D3RLPyLogger]:
    """Yields a logger that has logged the configuration."""
    factory, with_timestamp = options.logger_adapter or FileAdapterFactory(), options.with_timestamp
    stem = (options.experiment_name or type(algo).__name__) + stage
    if with_timestamp:
        stem += f"_{datetime.now():%Y%m%d%H%M%S}"
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
        save_config(cast(Any, algo), logger)
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


def create_run(
    algo: Trainable, options: RunOptions, budget: Budget, checkpoints: Checkpoints | None = None
) -> Run:
    """Returns how an algorithm's stages are run; each logs in a folder with its name."""

    @contextmanager
    def log(stage: str, prefix: str, epoch_steps: int) -> Iterator[StageLog]:
        with open_logger(algo, options, epoch_steps, f"_{stage}") as logger:
            yield LoggerLog(logger, prefix)

    graph: CompileGraph = algo.config.compile_graph if algo.compiled else False
    return Run(options.show_progress, checkpoints, algo.enable_ddp, graph, log, budget)


class Training:
    """One call of `fit`: the first stages of a built algorithm, then the objective's steps.

    Args:
        algo: the algorithm, built.
        buffer: the dataset to train on, on the algorithm's device.
        for_evaluators: the dataset that evaluators get.
        options: the arguments of `fit`.
        budget: its seconds.

    Raises:
        ValueError: the learning rates have two schedules.
    """

    def __init__(
        self,
        algo: Trainable,
        buffer: DeviceReplayBuffer,
        for_evaluators: ReplayBufferBase,
        options: FitOptions,
        budget: Budget,
    ) -> None:
        self._algo, self._buffer, self._budget = algo, buffer, budget
        self._for_evaluators, self._options = for_evaluators, options
        self._evaluators: Mapping[str, Any] = options.evaluators or {}
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
            Exception: see `MultiDiscreteAlgo.fit`, which documents all of them.
        """
        algo, budget = self._algo, self._budget
        algo.caches_features = None
        with ExitStack() as stack:
            checkpoints = self._open_checkpoints(stack)
            run = create_run(algo, self._options, budget, checkpoints)
            algo.begin_run(run)
            if checkpoints is None or checkpoints.stage != "training":
                algo.train_first_stages(self._buffer, run)
            with budget.counting():  # features of the whole dataset may be computed here
                source = algo.batch_source_at(algo.batch_source(self._buffer), 0.0)
            loop = self._create_loop(run)
            stack.callback(algo.forget_recording)
            yield from list(enumerate(loop.rows, 1))
            logger = stack.enter_context(
                open_logger(algo, self._options, self._options.n_steps_per_epoch)
            )
            step = self._step_of(loop, source, logger)
            for epoch in loop.epochs(step, self._after_step_of(loop, logger)):
                yield epoch, self._end_epoch(epoch, loop, logger, checkpoints)
            algo.end_run()
            for evaluate in self._evaluators.values():
                if hasattr(evaluate, "compare_with_data"):
                    evaluate.compare_with_data(self._for_evaluators)

    def _create_loop(self, run: Run) -> Loop:
        return Loop(
            run,
            "training",
            self._options.n_steps or self._algo.config.n_steps,
            self._options.n_steps_per_epoch,
            self._algo.checkpointed_parts(),
            device=self._buffer.device,
            patience=self._options.patience,
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
        options = self._options
        by_step = options.logging_strategy != LoggingStrategy.EPOCH

        def after_step(epoch: int) -> None:
            if by_step and loop.step % options.logging_steps == 0:
                _add_metrics(logger, loop.take_losses())
                loop.logged = logger.commit(epoch, loop.step)
            if options.callback:
                options.callback(self._algo, epoch, loop.step)

        return after_step

    def _end_epoch(
        self, epoch: int, loop: Loop, logger: D3RLPyLogger, checkpoints: Checkpoints | None
    ) -> dict[str, float]:
        """Evaluates, logs and saves; returns the epoch's row."""
        algo, options = self._algo, self._options
        _add_metrics(logger, {"time_epoch": loop.epoch_seconds, **loop.take_losses()})
        if options.epoch_callback:
            options.epoch_callback(algo, epoch, loop.step)
        algo.before_evaluation()
        loop.decide(algo.spend_the_rest, epoch)
        loop.test(algo.test_critics, epoch, is_wanted=bool(self._evaluators))
        measured = {}
        for name, evaluate in self._evaluators.items():
            with loop.showing(f"evaluating {name}"), logger.measure_time("evaluation"):
                measured[name] = evaluate(algo, self._for_evaluators)
        _add_metrics(logger, measured)
        if options.logging_strategy == LoggingStrategy.EPOCH:
            loop.logged = logger.commit(epoch, loop.step)
        if epoch % options.save_interval == 0:
            logger.save_model(loop.step, cast(Any, algo))
        score = None
        if options.best_by is not None:
            score = measured[options.best_by] * (1 if options.best_is == "highest" else -1)
            if checkpoints is not None and checkpoints.writes and loop.is_best(score):
                save_policy(algo, checkpoints.folder / BEST_FILE)
        budget = self._budget
        counted = {"step": loop.step, "seconds": budget.spent}
        if isinstance(budget.clock, WorkClock):
            counted["cpu_seconds"] = budget.cpu_seconds
        return loop.add_row({**loop.logged, **measured, **counted}, score)

    def _open_checkpoints(self, stack: ExitStack) -> Checkpoints | None:
        """Opens the run's checkpoints, if any, until the stack's end; loads the newest networks."""
        algo, options = self._algo, self._options
        if options.checkpoint_dir is None:
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
            options.checkpoint_dir,
            options.checkpoint_interval,
            identity | {"n_steps_per_epoch": options.n_steps_per_epoch},
            shared_state,
            ProcessGroup() if algo.enable_ddp else None,
            options.keep_checkpoints,
        )
        stack.enter_context(checkpoints)
        shared = checkpoints.start(options.resume)
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
    seen = [part[::step] for part in (buffer.observations, buffer.images) if part is not None]
    for array in (buffer.rewards, buffer.actions, buffer.terminals, *seen):
        digest.update(array.contiguous().cpu().numpy().tobytes())
    fields = json.loads(config.serialize())
    del fields["n_steps"]  # a run may be made longer
    fields["compile_graph"] = False  # results do not depend on it
    return {
        "algorithm": config.get_type(),
        "config": fields,
        "transitions": buffer.transition_count,
        "data": digest.hexdigest(),
    }
