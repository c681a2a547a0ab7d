"""The training loop of every stage: steps, progress, checkpoints, losses and early stopping."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from d3rlpy.logging import LOG
from torch import nn

from spin_d3rlpy.errors import DivergenceError
from spin_d3rlpy.training.averages import WeightAverage
from spin_d3rlpy.training.budget import Budget, StageTime
from spin_d3rlpy.training.checkpoints import ADVICE, Checkpoints
from spin_d3rlpy.training.graphs import CompileGraph
from spin_d3rlpy.training.progress import progress_bar
from spin_d3rlpy.training.schedules import Schedule

Metrics = Mapping[str, torch.Tensor]
Row = dict[str, float]
Step = Callable[[], Metrics]


class StageLog:
    """Destination of a stage's rows; this base class discards them."""

    folder: Path | None = None  # for files of the stage, if any

    def add(self, row: Mapping[str, float]) -> None:
        """Writes an epoch's row; `epoch` and `step` identify it."""


def _no_log(_stage: str, _prefix: str, _epoch_steps: int) -> AbstractContextManager[StageLog]:
    return nullcontext(StageLog())


@dataclasses.dataclass(frozen=True)
class Run:
    """How stages are run.

    Args:
        show_progress: draw a progress bar per stage.
        checkpoints: where to save and to resume from.
        enable_ddp: several processes train one model, see `spin_d3rlpy.training.distributed`.
        compile_graph: on a GPU, record a step as a CUDA graph: True, False or `"auto"`, see
            `spin_d3rlpy.training.graphs`.
        log: opens a stage's log, given its name, metric prefix and steps per epoch.
        budget: counts seconds and may limit them.
    """

    show_progress: bool = True
    checkpoints: Checkpoints | None = None
    enable_ddp: bool = False
    compile_graph: CompileGraph = False
    log: Callable[[str, str, int], AbstractContextManager[StageLog]] = _no_log
    budget: Budget = dataclasses.field(default_factory=Budget)


class MeanMetrics:
    """Running means of scalar tensors, kept on their device until logged."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, metrics: Metrics) -> None:
        """Adds one step's metrics."""
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] += 1

    def take(self) -> Row:
        """Fetches the means from the device and starts over."""
        means = {name: total.item() / self._counts[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """Returns sums and counts."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any], device: str | torch.device) -> None:
        """Inverse of `state_dict`, on `device`."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._counts = defaultdict(int, state["counts"])


class Loop:
    """Gradient steps of one stage, in epochs; resumes from the run's checkpoints.

    Args:
        stage: name in checkpoints and messages.
        n_steps: gradient steps, unless the run has a budget of seconds.
        epoch_steps: gradient steps per epoch, likewise; the last epoch may be shorter.
        parts: networks, optimizers and the like, saved in checkpoints.
        patience: epochs without a better score before it stops, or None.
        keep_best: network that ends with the weights of its best epoch, or with the averages of
            that epoch if `average` is its average.
        optimizers: whose learning rates follow the schedule.
        average: of weights, updated after each step.
        share: share of the run's remaining seconds.

    Attributes:
        step: gradient steps made.
        rows: one per finished epoch.
        logged: last logged metrics.
        epoch_seconds: wall-clock time of the last epoch's steps.
    """

    def __init__(
        self,
        run: Run,
        stage: str,
        n_steps: int,
        epoch_steps: int,
        parts: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        patience: int | None = None,
        keep_best: nn.Module | None = None,
        label: str = "Training",
        optimizers: Sequence[torch.optim.Optimizer] = (),
        schedule: Schedule | None = None,
        average: WeightAverage | None = None,
        share: float = 1.0,
    ) -> None:
        self.step = 0
        self.rows: list[Row] = []
        self.logged: Row = {}
        self.epoch_seconds = 0.0
        self._run, self._stage, self._label = run, stage, label
        self._device = torch.device(device)
        self._time = StageTime(run.budget, share, n_steps, epoch_steps)
        self._schedule, self._average = schedule, average
        self._parts = {**(parts or {}), "time": self._time}
        if average is not None:
            self._parts["average"] = average
        self._losses = MeanMetrics()
        self._patience = patience
        self._scores: list[float] = []
        self._keep_best = keep_best
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._started = time.monotonic()
        self._bar: Any = None  # while epochs are made
        checkpoints = run.checkpoints
        if checkpoints is not None and (saved := checkpoints.resume(stage)) is not None:
            self._load(saved, device)
        # After loading, which gives optimizers new groups.
        self._groups = [] if schedule is None or schedule.is_constant else _groups(optimizers)

    # -- steps -----------------------------------------------------------------------------

    def epochs(self, step: Step, after_step: Callable[[int], None] | None = None) -> Iterator[int]:
        """Makes the steps and yields each epoch's number, from 1, at its end.

        Args:
            step: makes one gradient step and returns scalars on the device, which the next call may
                overwrite.
            after_step: called with the epoch after each step.
        """
        checkpoints = self._run.checkpoints
        epoch = len(self.rows)
        with (
            progress_bar(
                self._label,
                "step",
                self._run.show_progress,
                total=self._time.total(self.step),
                initial=self.step,
            ) as bar,
            self._time.fastest_threads(self._device.type == "cpu"),
        ):
            self._bar = bar
            while not self.is_over(epoch):
                epoch += 1
                began = time.monotonic()
                with checkpoints.saving_on_interrupt() if checkpoints else nullcontext():
                    while not self._time.is_end(epoch, self.step):
                        self._time.measure(lambda: self._update(step))
                        bar.total = self._time.total(self.step)
                        bar.update()
                        if after_step is not None:
                            after_step(epoch)
                        if checkpoints is not None:
                            checkpoints.after_step(self._stage, self.step, self._state)
                self.epoch_seconds = time.monotonic() - began
                yield epoch
        if (seconds := self._time.seconds) is not None:
            LOG.info("Steps in the time", stage=self._stage, seconds=seconds, n_steps=self.step)
        if self._keep_best is not None and self._best_weights is not None:
            self._keep_best.load_state_dict(self._best_weights)

    def _update(self, step: Step) -> None:
        if self._groups:
            assert self._schedule is not None
            factor = self._schedule.factor(self.progress)
            for group in self._groups:
                group["lr"] = group["initial_lr"] * factor
        self._losses.add(step())
        if self._average is not None:
            self._average.update(self.step)
        self.step += 1

    @property
    def progress(self) -> float:
        """Completed share of the stage in the middle of the next step."""
        return self._time.progress(self.step)

    def take_losses(self) -> Row:
        """Returns each loss's mean since the last call; DivergenceError if one is not finite."""
        means = self._losses.take()
        for name, value in means.items():
            if not math.isfinite(value):
                checkpoints = self._run.checkpoints
                raise DivergenceError(
                    f"The run diverged: {name} is {value} at step {self.step} of {self._stage} or "
                    f"before. {ADVICE if checkpoints is None else checkpoints.advice}"
                )
        return means

    def take_row(self) -> Row:
        """Returns `epoch`, `step`, `take_losses` and `seconds` (since the start)."""
        counters = {"epoch": len(self.rows) + 1, "step": self.step}
        return {**counters, **self.take_losses(), "seconds": self.seconds}

    def add_row(self, row: Row, score: float | None = None) -> Row:
        """Ends an epoch with its row and returns the row.

        Args:
            row: the epoch's values.
            score: maximized by early stopping and `keep_best`; NaN is never better.
        """
        row = {k: v if isinstance(v, int) else float(v) for k, v in row.items()}  # not NumPy's
        self.rows.append(row)
        if score is not None:
            if self._keep_best is not None and self.is_best(score):
                # Scores are those of the averaged weights, if there are any.
                scored = self._keep_best if self._average is None else self._average.average
                self._best_weights = copy.deepcopy(scored.state_dict())
            self._scores.append(score)
        if self._run.checkpoints is not None and self.is_over(len(self.rows)):
            self._run.checkpoints.save(self._stage, self.step, self._state())
        return row

    def is_best(self, score: float) -> bool:
        """Whether a score beats those of all rows."""
        return score > self._comparable[self.best]

    @property
    def best(self) -> int:
        """First epoch with the best score; 0 if none."""
        return self._comparable.index(max(self._comparable))

    @property
    def _comparable(self) -> list[float]:
        """Scores by epoch, from 0; NaN is never better."""
        return [-math.inf, *(-math.inf if math.isnan(s) else s for s in self._scores)]

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run, without the time between interruption and resumption."""
        return time.monotonic() - self._started

    @contextmanager
    def showing(self, what: str) -> Iterator[None]:
        """Context in which the progress bar says what is done instead of steps."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)
        yield
        if self._bar is not None:
            self._bar.set_postfix_str("")

    def test(self, test: Callable[[], None], epoch: int, is_wanted: bool = True) -> None:
        """Tests what was learned: after the last epoch, or where wanted and the time affords it."""
        if self.is_over(epoch) or (is_wanted and self._time.affords_test):
            with self._time.testing(), self.showing("testing"):
                test()

    def decide(self, decide: Callable[[], float], epoch: int) -> None:
        """Decides what the rest of a timed stage is for, if it is time to; see `StageTime`."""
        if self._time.is_part_of_the_way(epoch) and not self.is_over(epoch):
            with self.showing("testing"):
                self._time.decide(decide)

    def is_over(self, epoch: int) -> bool:
        """Whether this epoch is the last one."""
        gave_up = self._patience is not None and len(self._scores) - self.best >= self._patience
        return gave_up or self._time.is_last(epoch, self.step)

    # -- checkpoints -----------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "step": self.step,
            "rows": self.rows,
            "logged": self.logged,
            "losses": self._losses.state_dict(),
            "scores": self._scores,
            "best_weights": self._best_weights,
            "seconds": self.seconds,
        }

    def _load(self, state: Mapping[str, Any], device: str | torch.device) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.step, self.rows, self.logged = state["step"], list(state["rows"]), state["logged"]
        self._losses.load_state_dict(state["losses"], device)
        self._scores, self._best_weights = list(state["scores"]), state["best_weights"]
        self._started -= state["seconds"]


def _groups(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Returns parameter groups, each with the base learning rate of its schedule."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for group in groups:
        group.setdefault("initial_lr", group["lr"])  # a loaded state has its own current rate
    return groups
