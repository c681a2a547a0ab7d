"""Training for a given time, by a clock that the tests turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIQL, FactoredBC
from spin_d3rlpy.policies import feature_cache
from spin_d3rlpy.training.budget import Budget, create_clock
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.loop import Loop, Metrics, Run
from spin_d3rlpy.training.work import WorkClock
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields


class Clock:
    """Moves only when a step takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CrashError(Exception):
    """Stands for whatever ends a run."""


def train(
    budget: Budget,
    clock: Clock,
    share: float = 1.0,
    checkpoints: Checkpoints | None = None,
    crash: int = -1,
    stage: str = "stage",
    slow_from: int = sys.maxsize,
) -> Loop:
    """Trains with steps of 0.1 s, of which the first, and those of a busy machine, take 1 s."""
    loop = Loop(Run(False, checkpoints, budget=budget), stage, 7, 7, share=share)

    def step() -> Metrics:
        if loop.step == crash:
            raise CrashError
        clock.now += 1.0 if loop.step == 0 or loop.step >= slow_from else 0.1
        return {"loss": torch.tensor(0.0)}

    for _ in loop.epochs(step):
        clock.now += 5.0  # an evaluation, which does not count
        loop.add_row(loop.take_row())
    return loop


def test_as_many_steps_are_made_as_fit_in() -> None:
    clock = Clock()
    budget = Budget(10.0, clock, n_epochs=4)
    loop = train(budget, clock)
    assert loop.step == pytest.approx(91, abs=2)
    assert budget.spent == pytest.approx(10.0, abs=0.2)
    assert len(loop.rows) == 4


@pytest.mark.parametrize(("test_seconds", "n_tests"), [(0.05, 4), (0.4, 3), (3.0, 1), (30.0, 1)])
def test_tests_count_and_all_but_the_last_keep_to_a_share(
    test_seconds: float, n_tests: int
) -> None:
    clock = Clock()
    budget = Budget(10.0, clock, n_epochs=4)
    loop = Loop(Run(False, budget=budget), "stage", 7, 7)
    tested: list[int] = []
    decided: list[int] = []

    def step() -> Metrics:
        clock.now += 0.01
        return {"loss": torch.tensor(0.0)}

    def test() -> None:
        clock.now += test_seconds
        tested.append(loop.step)

    def decide() -> float:
        clock.now += 0.1 * test_seconds
        decided.append(loop.step)
        return 10.0

    for epoch in loop.epochs(step):
        loop.decide(decide, epoch)
        loop.test(test, epoch)
        loop.add_row(loop.take_row())
    # After each quarter but the last; a quarter is shorter where tests before it took time.
    assert len(decided) == 3
    assert decided[0] == pytest.approx(250, abs=3)
    assert len(tested) == n_tests
    assert tested[0] >= decided[0]
    assert tested[-1] == loop.step  # what was learned last is tested
    if test_seconds < 10.0:
        assert budget.spent == pytest.approx(10.0, abs=0.05)
        assert loop.step == pytest.approx((10.0 - (n_tests + 0.3) * test_seconds) / 0.01, abs=3)


def test_stages_share_the_seconds() -> None:
    clock = Clock()
    budget = Budget(20.0, clock)
    first = train(budget, clock, share=0.25)
    assert first.step == pytest.approx(41, abs=2)
    second = train(budget, clock, stage="second")
    assert second.step == pytest.approx(141, abs=3)
    assert budget.spent == pytest.approx(20.0, abs=0.3)


def test_a_stage_without_time_left_makes_a_step_per_epoch_if_steps_are_short() -> None:
    clock = Clock()
    budget = Budget(200.0, clock)
    train(budget, clock)
    assert train(budget, clock, stage="second").step == budget.n_epochs


def test_a_stage_without_time_left_makes_one_step_if_steps_are_long() -> None:
    """A step for each of ten epochs, of 1 s each, would be half of the budget."""
    clock = Clock()
    budget = Budget(20.0, clock)
    train(budget, clock)
    loop = train(budget, clock, stage="second", slow_from=0)
    assert (loop.step, len(loop.rows)) == (1, 1)
    assert budget.spent == pytest.approx(21.0, abs=0.2)


def test_the_fastest_number_of_threads_is_known_after_a_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    budget = Budget(300.0, clock)
    threads = Threads(monkeypatch, clock, 2)
    threads.train({1: 0.1, 2: 2.5}, budget)
    assert budget.threads == 1
    with budget.fastest_threads():
        assert threads.n == 1
    assert threads.n == 2


def test_a_stage_that_becomes_slower_keeps_its_seconds() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    loop = train(budget, clock, slow_from=30)
    assert 30 < loop.step < 60
    assert budget.spent == pytest.approx(10.0, abs=1.0)


class Threads:
    """Torch's number of threads, and steps whose time depends on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock, n: int) -> None:
        self.n, self.clock = n, clock
        self.by_step: list[int] = []
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.n)
        monkeypatch.setattr(torch, "set_num_threads", self.set)

    def set(self, n: int) -> None:
        self.n = n

    def train(self, seconds: dict[int, float], budget: Budget) -> None:
        loop = Loop(Run(False, budget=budget), "stage", 50, 50)

        def step() -> Metrics:
            self.by_step.append(self.n)
            self.clock.now += seconds[self.n]
            return {"loss": torch.tensor(0.0)}

        for _ in loop.epochs(step):
            loop.add_row(loop.take_row())


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 0.1, 2: 2.5}, 1),  # another program uses the second core
        ({1: 0.1, 2: 0.09}, 1),  # not worth it
        ({1: 0.1, 2: 0.06}, 2),
        ({1: 0.4, 2: 0.2, 4: 0.1, 6: 0.05}, 6),
        ({1: 0.4, 2: 0.2, 4: 0.1, 6: 0.1}, 4),
        ({1: 0.1}, 1),
    ],
)
def test_the_fastest_number_of_threads_is_chosen(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], best: int
) -> None:
    clock = Clock()
    threads = Threads(monkeypatch, clock, most := max(seconds))
    threads.train(seconds, Budget(300.0, clock))
    assert threads.by_step[0] == 1
    assert threads.by_step[-1] == best
    assert threads.by_step.count(best) > 0.9 * len(threads.by_step)
    assert threads.n == most  # the user's, afterwards


def test_slow_trials_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    threads = Threads(monkeypatch, clock, 2)
    threads.train({1: 0.1, 2: 3.0}, Budget(60.0, clock))
    assert threads.by_step.count(2) == 1


def test_without_seconds_threads_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    threads = Threads(monkeypatch, clock, 4)
    threads.train({4: 0.1}, Budget(None, clock))
    assert set(threads.by_step) == {4}


def test_without_seconds_steps_are_counted_and_time_is_told() -> None:
    clock = Clock()
    budget = Budget(None, clock)
    assert train(budget, clock).step == 7
    assert budget.spent == pytest.approx(1.6)


def test_a_resumed_run_has_the_seconds_that_were_left(tmp_path: Path) -> None:
    clock = Clock()
    with Checkpoints(tmp_path, 3, {}, dict) as first:
        first.start(resume=True)
        with pytest.raises(CrashError):
            train(Budget(10.0, clock), clock, checkpoints=first, crash=40)
    with Checkpoints(tmp_path, 3, {}, dict) as second:
        second.start(resume=True)
        budget = Budget(10.0, clock)
        loop = train(budget, clock, checkpoints=second)
    assert loop.step == pytest.approx(91, abs=2)
    # 39 steps are in the checkpoint, and their seconds.
    assert budget.spent == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_seconds_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        Budget(seconds)


@pytest.mark.parametrize("seconds", ["5", True, float("nan"), float("inf")])
def test_seconds_that_are_no_length_are_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds above 0, a number, got"):
        Budget(seconds)


def test_preparations_count() -> None:
    clock = Clock()
    budget = Budget(10.0, clock, n_epochs=4)
    with budget.counting():
        clock.now += 6.0
    loop = train(budget, clock)
    assert loop.step == pytest.approx(31, abs=2)
    assert budget.spent == pytest.approx(10.0, abs=0.2)


def test_moving_the_dataset_and_caching_features_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slow(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            clock.now += 2.0
            return original(*arguments)

        return run

    monkeypatch.setattr(SPINIQL, "_as_buffer", slow(SPINIQL._as_buffer))
    monkeypatch.setattr(
        "spin_d3rlpy.algos.policy.compute_features", slow(feature_cache.compute_features)
    )
    fields: dict[str, Any] = {"train_queries": False, "cache_features": True}
    algo = new_algorithm(SPINIQL, **{**tiny_fields(SPINIQL), **fields})
    budget = Budget(1.0, clock, n_epochs=1)
    quiet: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}
    algo.fit(random_buffer(), seconds=budget, **quiet)
    assert budget.spent == 4.0


def test_fit_counts_the_processors_time_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Budget] = []

    def begin_run(_algo: FactoredBC, run: Run) -> None:
        used.append(run.budget)
        raise CrashError

    monkeypatch.setattr(FactoredBC, "begin_run", begin_run)
    clocks: tuple[Literal["wall", "cpu", "ops"], ...] = ("wall", "cpu", "ops")
    for clock in clocks:
        with pytest.raises(CrashError):
            FactoredBC().fit(random_buffer(), seconds=5, clock=clock)
    assert [budget.clock for budget in used[:2]] == [time.monotonic, time.process_time]
    assert isinstance(used[2].clock, WorkClock)
    with pytest.raises(ValueError, match="clock 'wall' or 'cpu' or 'ops', got 'sun'"):
        FactoredBC().fit(random_buffer(), seconds=5, clock="sun")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds=<a number>"):
        FactoredBC().fit(random_buffer(), clock="cpu")


def test_clocks_have_names() -> None:
    assert create_clock("wall") is time.monotonic
    assert create_clock("cpu") is time.process_time
    assert isinstance(create_clock("ops"), WorkClock)
    with pytest.raises(ValueError, match="clock"):
        create_clock("sun")  # type: ignore[arg-type]
