"""Training for a given time: schedules and epochs follow the clock."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from d3rlpy.logging import LOG

from spin_d3rlpy.errors import require_fields, require_one_of
from spin_d3rlpy.training.work import StepWork, WorkClock

Clock = Literal["wall", "cpu", "ops"]

UNTIMED_STEPS = 3  # in which memory and caches are made
TRIAL_SHARE = 0.01  # of the seconds, for each number of threads
LEAST_GAIN = 1.25  # other programs may soon use the cores
# A stage whose time is over ends before its last epoch if steps for all of them would take more
# overtime than this share of the budget, and than these seconds.
OVERTIME_SHARE = 0.05
OVERTIME_SECONDS = 0.5
# At the end of the epochs in which these shares of a stage's seconds are over, brief tests of what
# was learned decide what the rest is for.
DECISIONS = (0.25, 0.5, 0.75)
# From then on, tests before the one at the stage's end are made while all of them keep to this
# share of the seconds.
TEST_SHARE = 0.1


def create_clock(name: Clock) -> Callable[[], float]:
    """Returns what counts seconds.

    Args:
        name: `"wall"`, or `"cpu"`, the process's time on all cores, by which runs on busy machines
            compare, or `"ops"`, nominal seconds of the operations made, by which runs on different
            machines compare.

    Raises:
        ValueError: another name.
    """
    require_one_of("clock", name, Clock)
    if name == "ops":
        return WorkClock()
    return time.process_time if name == "cpu" else time.monotonic


@dataclasses.dataclass(eq=False)
class Budget:
    """Counts the seconds of a run's steps, limited to a total for all stages.

    Args:
        seconds: total; None if stages have a number of steps. Preparations (moving the dataset,
            building networks, caching features) count, evaluations and saving do not.
        clock: returns seconds: wall-clock time or, on shared cores, CPU time. A `WorkClock`'s are
            the same on every machine.
        n_epochs: epochs per stage if `seconds` is given.
        for_one_stage: whether a stage takes all of the seconds, whatever its share of a run's.

    Attributes:
        spent: seconds of all steps and preparations so far.
        cpu_seconds: the process's time on all cores in these, whatever the clock.
        threads: of a CPU, the fastest number as the last stage found it; None if none has.

    Raises:
        ValueError: `seconds` is not a positive number.
    """

    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    n_epochs: int = 10
    for_one_stage: bool = False
    spent: float = dataclasses.field(default=0.0, init=False)
    cpu_seconds: float = dataclasses.field(default=0.0, init=False)
    threads: int | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        given = self.seconds
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        is_length = is_number and 0.0 < float(given or 0.0) < math.inf
        require_fields(self, seconds=(given is None or is_length, "above 0, a number"))

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0; infinity without a total."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - self.spent)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Context of a preparation, whose time counts."""
        began, began_cpu = self.clock(), time.process_time()
        with self.preparing():
            yield
        self.spent += self.clock() - began
        self.cpu_seconds += time.process_time() - began_cpu

    def preparing(self) -> AbstractContextManager[None]:
        """Context of a preparation within a step, whose time counts with the step's."""
        return self.clock.preparing() if isinstance(self.clock, WorkClock) else nullcontext()

    @contextmanager
    def fastest_threads(self) -> Iterator[None]:
        """Context that computes with `threads`, if they are known."""
        before = torch.get_num_threads()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class StageTime:
    """Length of a stage: a share of the seconds that remain of a budget, or a number of steps.

    Attributes:
        seconds: of the stage; None without a budget of seconds.
    """

    def __init__(self, budget: Budget, share: float, n_steps: int, epoch_steps: int) -> None:
        self._budget = budget
        self.seconds: float | None = None
        if budget.seconds is not None:
            self.seconds = budget.left if budget.for_one_stage else share * budget.left
        self._n_steps, self._epoch_steps = n_steps, epoch_steps
        self._spent = 0.0
        self._tests = self._next_test = 0.0  # seconds of all tests, and of the next whole one
        self._has_decided = False
        self._threads = _Threads(self.seconds or 0.0)
        clock = budget.clock
        self._work = StepWork(clock) if isinstance(clock, WorkClock) else None

    def is_end(self, epoch: int, step: int) -> bool:
        """Whether an epoch (from 1) is complete after `step` steps of the stage."""
        if self.seconds is None:
            return step >= min(epoch * self._epoch_steps, self._n_steps)
        # Every epoch has a step, also one that has no time left; see `is_last` for how many.
        return step >= epoch and self._spent >= self._limit * epoch / self._budget.n_epochs

    def is_last(self, epoch: int, step: int) -> bool:
        """Whether the stage ends with this epoch, after `step` steps."""
        if self.seconds is None:
            return step >= self._n_steps  # the last epoch of a run that is made longer was short
        if epoch >= self._budget.n_epochs:
            return True
        if step == 0 or self._spent < self._limit:
            return False
        # One step for each of the other epochs is affordable only where steps are short.
        others = (self._budget.n_epochs - epoch) * (self._spent - self._tests) / step
        most = max(OVERTIME_SECONDS, OVERTIME_SHARE * (self._budget.seconds or 0.0))
        return self._spent + others > self.seconds + most

    def progress(self, step: int) -> float:
        """Returns the completed share of the stage in the middle of a step."""
        if self.seconds is None:
            return (step + 0.5) / self._n_steps
        return min(1.0, self._spent / self._limit) if self._limit else 1.0

    @property
    def _limit(self) -> float:
        """Seconds of the stage without those of the test at its end."""
        assert self.seconds is not None
        return max(0.0, self.seconds - self._next_test)

    def is_part_of_the_way(self, epoch: int) -> bool:
        """Whether a timed stage decides at the end of this epoch what the rest is for."""
        ends = [math.ceil(share * self._budget.n_epochs) for share in DECISIONS]
        return self.seconds is not None and epoch in ends

    @property
    def affords_test(self) -> bool:
        """Whether another test before the end keeps to its share; none does before a decision."""
        if self.seconds is None:
            return True
        return self._has_decided and self._tests + self._next_test <= TEST_SHARE * self.seconds

    @contextmanager
    def testing(self) -> Iterator[None]:
        """Context of a test of what was learned, between steps; its time counts."""
        before = self._tests
        with self._counting_test():
            yield
        self._next_test = self._tests - before

    def decide(self, decide: Callable[[], float]) -> None:
        """Decides what the rest is for.

        Args:
            decide: tests briefly, and returns how many times as long a whole test takes, about.
        """
        before = self._tests
        with self._counting_test():
            times = decide()
        if self._next_test == 0.0:  # there was no whole one yet
            self._next_test = times * (self._tests - before)
        self._has_decided = True

    @contextmanager
    def _counting_test(self) -> Iterator[None]:
        before = self._budget.spent
        with self._budget.counting():
            yield
        self._tests += self._budget.spent - before
        self._spent += self._budget.spent - before

    def total(self, step: int) -> int | None:
        """Returns the number of steps, estimated from the seconds of the first `step` ones."""
        if self.seconds is None:
            return self._n_steps
        return math.ceil(step / self.progress(step)) if self._spent else None

    def measure(self, make: Callable[[], None]) -> None:
        """Makes a step and counts its seconds."""
        budget, began_cpu = self._budget, time.process_time()
        if self._work is None:
            began = budget.clock()
            make()
            seconds = elapsed = budget.clock() - began
        else:  # threads are chosen by real time
            began = time.monotonic()
            seconds = self._work.measure(make)
            elapsed = time.monotonic() - began
        budget.cpu_seconds += time.process_time() - began_cpu
        budget.spent += seconds
        self._spent += seconds
        self._threads.after_step(elapsed)

    @contextmanager
    def fastest_threads(self, is_on_cpu: bool) -> Iterator[None]:
        """With a budget, the stage's steps in this context use the fastest number of threads."""
        before = torch.get_num_threads()
        if self.seconds is not None and is_on_cpu:
            self._threads.start(before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
        self._budget.threads = self._threads.best or self._budget.threads

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured."""
        return {
            "seconds": self.seconds,
            "spent": self._spent,
            "spent_by_run": self._budget.spent,  # with earlier stages
            "cpu_seconds_of_run": self._budget.cpu_seconds,
            "threads": self._threads.best,
            "tests": self._tests,
            "next_test": self._next_test,
            "has_decided": self._has_decided,
            "work": None if self._work is None else self._work.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; a newly given number of steps wins."""
        if self.seconds is not None:
            self.seconds = state_dict["seconds"]
            self._threads.best = state_dict.get("threads")
        self._spent = state_dict["spent"]
        self._tests = state_dict.get("tests", 0.0)
        self._next_test = state_dict.get("next_test", 0.0)
        self._has_decided = state_dict.get("has_decided", False)
        # The preparations of the resumed process do not count: they were counted before.
        self._budget.spent = state_dict["spent_by_run"]
        self._budget.cpu_seconds = state_dict.get("cpu_seconds_of_run", 0.0)
        if self._work is not None and state_dict.get("work") is not None:
            self._work.load_state_dict(state_dict["work"])


class _Threads:
    """Number of CPU threads, doubled in the first steps for as long as that makes them faster."""

    # Small networks gain little from several threads. If other programs use the cores, threads wait
    # for each other: on two cores, one of them busy, steps took 25 times as long with two threads.

    def __init__(self, seconds: float) -> None:
        self.best: int | None = None  # until known
        self._seconds = seconds  # of the stage
        self._most = self._tried = self._winner = 0
        self._times: list[float] = []
        self._fastest = math.inf  # seconds per step

    def start(self, most: int) -> None:
        """Begins with one thread, or where a resumed run ended."""
        self._most = most
        self._try(min(self.best or 1, most))
        if self._most == 1:
            self.best = 1

    def after_step(self, seconds: float) -> None:
        """Counts a step's seconds; tries another number when enough are counted."""
        if self.best is not None or not self._most:
            return
        self._times.append(seconds)
        timed = self._times[UNTIMED_STEPS:]
        enough = TRIAL_SHARE * self._seconds
        if self._tried > 1 and not timed and sum(self._times) > enough:
            timed = self._times[-1:]  # far too slow to go through more of them
        if not timed or sum(timed) < enough:
            return
        step = sum(timed) / len(timed)
        is_faster = step * LEAST_GAIN <= self._fastest
        if is_faster:
            self._fastest, self._winner = step, self._tried
        if is_faster and self._tried < self._most:
            self._try(min(2 * self._tried, self._most))
            return
        self.best = self._winner
        self._try(self.best)
        LOG.info("Threads of CPU steps", threads=self.best, available=self._most)

    def _try(self, threads: int) -> None:
        self._tried, self._times = threads, []
        torch.set_num_threads(threads)
