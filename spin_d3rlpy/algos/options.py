"""Arguments of `fit`, `fit_online`, `pretrain` and `distill`, written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from d3rlpy.algos.qlearning.explorers import Explorer
from d3rlpy.constants import LoggingStrategy
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import LoggerAdapterFactory
from d3rlpy.metrics import EvaluatorProtocol

from spin_d3rlpy.errors import require_fields, require_one_of
from spin_d3rlpy.training.budget import Budget, Clock
from spin_d3rlpy.training.checkpoints import DEFAULT_KEEP

BestIs = Literal["highest", "lowest"]


@dataclasses.dataclass()
class FitOptions:
    """What `fit` and `fitter` take, in the order of d3rlpy's `fit`.

    Args:
        dataset: a dataset's name, a `minari.MinariDataset`, a d3rlpy `ReplayBuffer`, a
            `DeviceReplayBuffer`, or the path of a file of d3rlpy 1.x (`.h5`).
        n_steps: gradient steps; the config's `n_steps` if None.
        n_steps_per_epoch: steps between evaluations, logging and saving.
        experiment_name: name of the log folder; the class's name if None.
        with_timestamp: append the time to it.
        logging_steps: steps between logs if `logging_strategy` is STEPS.
        logging_strategy: when metrics are logged.
        logger_adapter: d3rlpy logger adapter factory; files in `d3rlpy_logs` if None.
        show_progress: draw progress bars.
        save_interval: epochs between saved models.
        evaluators: d3rlpy evaluators by metric name. They get `dataset` if it is a replay buffer,
            otherwise the buffer made of it.
        callback: called with (algo, epoch, step) after every step.
        epoch_callback: the same after every epoch.
        checkpoint_dir: folder of checkpoints, written at an interval, at SIGINT (Ctrl-C) and
            SIGTERM and at the end; None for no checkpoints. With `enable_ddp`, process 0 reads and
            writes them, not at signals.
        resume: continue from the newest checkpoint, if any, with the weights and metrics of an
            uninterrupted run (bit for bit on a CPU). Results of earlier epochs come first; loggers
            get only later ones.
        checkpoint_interval: steps of any stage between checkpoints.
        keep_checkpoints: number of newest checkpoints to keep.
        best_by: name of the evaluator that decides the best epoch. With `checkpoint_dir`, its
            policy is saved as `best.safetensors`, for `load_policy`.
        best_is: whether the highest or the lowest value is best.
        patience: stop after this many epochs without a better one, in the last epoch's state.
        seconds: training time instead of `n_steps`, preparations and first stages included,
            evaluations not. Schedules and the ten epochs follow the clock. On the CPU the first
            steps find the fastest number of threads. Or a `Budget`.
        clock: of `seconds`: `"wall"`, or `"cpu"`, the process's time on all cores, by which runs on
            busy machines compare, or `"ops"`, nominal seconds of the operations made, by which runs
            on different machines compare.

    Raises:
        ValueError: a value is out of range, or two do not fit each other.
    """

    dataset: Any
    n_steps: int | None = None
    n_steps_per_epoch: int = 10_000
    experiment_name: str | None = None
    with_timestamp: bool = True
    logging_steps: int = 500
    logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH
    logger_adapter: LoggerAdapterFactory | None = None
    show_progress: bool = True
    save_interval: int = 1
    evaluators: dict[str, EvaluatorProtocol] | None = None
    callback: Callable[[Any, int, int], None] | None = None
    epoch_callback: Callable[[Any, int, int], None] | None = None
    checkpoint_dir: str | Path | None = None
    resume: bool = False
    checkpoint_interval: int = 10_000
    keep_checkpoints: int = DEFAULT_KEEP
    best_by: str | None = None
    best_is: BestIs = "highest"
    patience: int | None = None
    seconds: float | Budget | None = None
    clock: Clock = "wall"

    def __post_init__(self) -> None:
        require_one_of("clock", self.clock, Clock)
        require_one_of("best_is", self.best_is, BestIs)
        if self.patience is not None and self.best_by is None:
            raise ValueError("patience needs best_by=, the evaluator that it waits for.")
        names = list(self.evaluators or {})
        require_fields(
            self,
            n_steps=(self.n_steps is None or self.n_steps >= 1, "of at least 1"),
            n_steps_per_epoch=(self.n_steps_per_epoch >= 1, "of at least 1"),
            patience=(self.patience is None or self.patience >= 1, "of at least 1"),
            best_by=(
                self.best_by is None or self.best_by in names,
                f"to be one of the evaluators ({', '.join(names) or 'none'})",
            ),
        )
        if self.best_by is not None and self.patience is None and self.checkpoint_dir is None:
            raise ValueError(
                "best_by needs checkpoint_dir=, where the best policy is kept, or patience=."
            )


@dataclasses.dataclass()
class OnlineOptions:
    """What `fit_online` takes, in d3rlpy's order.

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
    """

    env: Any
    buffer: ReplayBufferBase | None = None
    explorer: Explorer | None = None
    n_steps: int = 1_000_000
    n_steps_per_epoch: int = 10_000
    update_interval: int = 1
    n_updates: int = 1
    update_start_step: int = 0
    random_steps: int = 0
    eval_env: Any = None
    eval_epsilon: float = 0.0
    eval_n_trials: int = 10
    save_interval: int = 1
    experiment_name: str | None = None
    with_timestamp: bool = True
    logging_steps: int = 500
    logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH
    logger_adapter: LoggerAdapterFactory | None = None
    show_progress: bool = True
    callback: Callable[[Any, int, int], None] | None = None


@dataclasses.dataclass()
class StageOptions:
    """What `pretrain` and `distill` take; for the arguments see `FitOptions`.

    Raises:
        ValueError: an unknown clock.
    """

    dataset: Any
    experiment_name: str | None = None
    with_timestamp: bool = True
    logger_adapter: LoggerAdapterFactory | None = None
    show_progress: bool = True
    seconds: float | Budget | None = None
    clock: Clock = "wall"

    def __post_init__(self) -> None:
        require_one_of("clock", self.clock, Clock)


RunOptions = FitOptions | StageOptions
