"""Training for a given work: operations are counted, and machines' seconds change nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import d3rlpy
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from torch import nn

from spin_d3rlpy import SPINIQL, FactoredIQL
from spin_d3rlpy.algos import recorded
from spin_d3rlpy.fast.attention import attend
from spin_d3rlpy.fast.cpu import onednn_multiplies_float32
from spin_d3rlpy.fast.mlp import relu_mlps
from spin_d3rlpy.training import budget as budget_file
from spin_d3rlpy.training import work
from spin_d3rlpy.training.budget import Budget, StageTime
from spin_d3rlpy.training.work import StepWork, WorkClock
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields
from tests.algos.runs import make_tuned

QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}


def counted(compute: Callable[[], torch.Tensor]) -> tuple[int, int]:
    """Returns the multiply-adds of a computation and of its gradients."""
    clock = WorkClock()
    with clock.counting():
        result = compute()
    forward = clock.products
    with clock.counting():
        result.sum().backward()
    return forward, clock.products - forward


# -- counts ------------------------------------------------------------------------------------


def test_linear_layers_forward_and_backward() -> None:
    network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    # The first layer's input needs no gradient.
    assert counted(lambda: network(torch.randn(7, 3))) == (
        7 * (3 * 5 + 5 * 2),
        7 * (3 * 5 + 2 * 5 * 2),
    )


def test_products_in_functions_with_gradients_of_their_own() -> None:
    b, t, h, d = 7, 5, 2, 3
    projected = torch.randn(b, t, 3 * h * d, requires_grad=True)
    one = b * h * t * t * d
    assert counted(lambda: attend(projected, h, 0.0)) == (2 * one, 4 * one)
    members = [[nn.Linear(3, 5), nn.Linear(5, 2)] for _ in range(2)]
    assert counted(lambda: relu_mlps(torch.randn(7, 3), members)) == (
        2 * 7 * (3 * 5 + 5 * 2),
        2 * 7 * (3 * 5 + 2 * 5 * 2),
    )


def test_torchs_attention() -> None:
    b, h, t, d = 7, 2, 5, 8
    q, k, v = (torch.randn(b, h, t, d, requires_grad=True) for _ in range(3))
    forward, backward = counted(lambda: nn.functional.scaled_dot_product_attention(q, k, v))
    assert forward == 2 * b * h * t * t * d
    assert backward >= 2 * forward  # weights may be computed again


@pytest.mark.parametrize(
    ("dtype", "without"),
    # oneDNN has no float64. Torch's own loop leaves the first state's gradient out.
    [(torch.float32, 0), (torch.float64, 7 * 4 * 5 * 5)],
)
def test_an_lstm(dtype: torch.dtype, without: int) -> None:
    lstm = nn.LSTM(3, 5, batch_first=True, dtype=dtype)
    x = torch.randn(7, 4, 3, requires_grad=True, dtype=dtype)
    forward, backward = counted(lambda: lstm(x)[0])
    assert forward == 7 * 4 * 4 * 5 * (3 + 5)
    assert backward == 2 * forward - without


def test_products_that_are_made_once_a_process_do_not_count() -> None:
    clock = WorkClock()
    with clock.counting():
        onednn_multiplies_float32.__wrapped__()
    assert clock.products == clock.calls == 0


def test_contexts_within_contexts_count_once() -> None:
    a = torch.randn(3, 3)
    clock = WorkClock()
    with clock.counting(), clock.counting():
        _ = (a @ a).T.exp()
    _ = a @ a
    assert (clock.products, clock.calls) == (27, 2)  # a view is none
    assert clock() == pytest.approx(27 / 5e10 + 2 * 3e-5)
    with clock.counting(), clock.preparing(), clock.counting():
        _ = a @ a
    assert (clock.products, clock.calls) == (54, 2)


# -- steps -------------------------------------------------------------------------------------


def test_steps_are_like_the_last_counted_one() -> None:
    clock, rows = WorkClock(), itertools.count(1)
    steps = StepWork(clock)

    def step() -> None:
        _ = torch.ones(next(rows), 2) @ torch.ones(2, 2)

    for _ in range(2 * work.COUNTED_EVERY):
        steps.measure(step)
    first, second = work.FIRST_COUNTED, work.COUNTED_EVERY
    of_first = sum(range(1, first + 1)) + (second - first) * first
    assert clock.products == 4 * (of_first + second * (second + 1))


def test_a_preparation_in_a_step_counts_once() -> None:
    clock = WorkClock()
    steps, a = StepWork(clock), torch.ones(10, 10)

    def usual() -> None:
        _ = a[:1] @ a

    def caching() -> None:
        with clock.preparing():
            _ = a @ a
        usual()

    def on_cached() -> None:
        _ = a[:2] @ a

    for step in (*[usual] * 5, caching, *[on_cached] * 4):
        steps.measure(step)
    assert clock.products == 6 * 100 + 1000 + 4 * 200


def test_a_resumed_process_takes_its_first_step_to_be_like_those_before() -> None:
    a = torch.ones(10, 10)

    def usual() -> None:
        _ = a @ a

    def first() -> None:
        usual()
        usual()

    whole, resumed = WorkClock(), WorkClock()
    steps = StepWork(whole)
    for _ in range(work.COUNTED_EVERY):
        steps.measure(usual)
    again = StepWork(resumed)
    again.load_state_dict(steps.state_dict())
    steps.measure(usual)
    again.measure(first)  # at a step that is counted otherwise
    assert resumed() == whole() > 0.0


def test_counting_all_steps_makes_no_difference_where_they_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    totals = []
    for every in (work.COUNTED_EVERY, 1):
        monkeypatch.setattr(work, "COUNTED_EVERY", every)
        d3rlpy.seed(0)
        budget = Budget(None, WorkClock())
        algo = new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL))
        algo.fit(random_buffer(), n_steps=90, seconds=budget, **QUIET)
        totals.append(budget.spent)
    assert totals[0] == totals[1] > 0.0


# -- trainings ---------------------------------------------------------------------------------


def steps_in(slowness: float, make: Callable[[], Any], seconds: float) -> tuple[list[int], float]:
    """Returns the steps of each epoch on a machine that rests after each step, and real seconds."""
    d3rlpy.seed(3)
    algo = make()
    rows = algo.fit(
        random_buffer(),
        seconds=seconds,
        clock="ops",
        callback=lambda *_: time.sleep(slowness),
        **QUIET,
    )
    return [row["step"] for _, row in rows], rows[-1][1]["cpu_seconds"]


@pytest.mark.parametrize(
    ("make", "seconds"),
    [
        pytest.param(make_tuned, 2.0, marks=pytest.mark.slow),
        (lambda: new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL)), 0.5),
    ],
    ids=["SPIN", "F"],
)
@pytest.mark.slow
def test_as_many_steps_on_slow_machines(make: Callable[[], Any], seconds: float) -> None:
    fast, cpu_seconds = steps_in(0.0, make, seconds)
    assert len(fast) == 10
    assert fast[-1] > len(fast)
    assert cpu_seconds > 0.0
    assert steps_in(0.01, make, seconds)[0] == fast
    assert steps_in(0.0, make, 2 * seconds)[0][-1] > 1.2 * fast[-1]


def test_threads_are_chosen_by_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, n, a = 0.0, 2, torch.ones(100, 100)

    def set_threads(number: int) -> None:
        nonlocal n
        n = number

    def step() -> None:
        nonlocal now
        now += {1: 0.3, 2: 0.1}[n]
        _ = a @ a

    monkeypatch.setattr(torch, "get_num_threads", lambda: n)
    monkeypatch.setattr(torch, "set_num_threads", set_threads)
    real = type("Time", (), {"monotonic": lambda: now, "process_time": lambda: 0.0})
    monkeypatch.setattr(budget_file, "time", real)
    stage = StageTime(budget := Budget(10.0, WorkClock()), 1.0, 1, 1)
    with stage.fastest_threads(is_on_cpu=True):
        for _ in range(30):
            stage.measure(step)
    assert budget.threads == 2
    assert budget.spent == pytest.approx(30 * (1e6 / 5e10 + 3e-5))


def test_recordings_are_refused_or_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    by_work: dict[str, Any] = {"seconds": 0.01, "clock": "ops", **QUIET}
    FactoredIQL(compile_graph=True, batch_size=16).fit(random_buffer(), **by_work)  # on a CPU
    monkeypatch.setattr(recorded, "can_record", lambda _device: True)
    with pytest.raises(ValueError, match=r"expected compile_graph='auto' or False, got True"):
        FactoredIQL(compile_graph=True).fit(random_buffer(), **by_work)
    algo = FactoredIQL(batch_size=16)
    assert algo.config.compile_graph == "auto"
    assert algo.compiled
    seen = []
    algo.fit(random_buffer(), **by_work, callback=lambda a, _epoch, _step: seen.append(a.compiled))
    assert seen
    assert not any(seen)


def test_features_that_are_cached_in_a_step_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows pass through the trunk once; steps no longer do."""
    clocks = []
    for cached in (True, False):
        d3rlpy.seed(0)
        algo = new_algorithm(
            SPINIQL, **{**tiny_fields(SPINIQL), "train_queries": False, "cache_features": cached}
        )
        algo.fit(random_buffer(), n_steps=1, seconds=(budget := Budget(None, WorkClock())), **QUIET)
        clocks.append((budget.clock, algo.caches_features))
    assert clocks[0][1] is True
    one, other = (clock for clock, _ in clocks)
    assert isinstance(one, WorkClock)
    assert isinstance(other, WorkClock)
    assert one.products != other.products
    assert one.preparations == other.preparations + 1
