"""A run that is stopped at any point and started again ends as if nothing had happened."""

from __future__ import annotations

import functools
import importlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import d3rlpy
import pytest
import torch
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import (
    SPINIQL,
    AutoregressiveBCQ,
    DecQNIQL,
    FactoredAWAC,
    FactoredIQL,
    SPINDistillIQL,
)
from spin_d3rlpy.asm import distillation
from spin_d3rlpy.asm.objectives.masked import AnyOrderActionModeling
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.checkpoints import Checkpoints, read_checkpoint
from spin_d3rlpy.training.work import WorkClock
from tests.algos.problems import random_buffer
from tests.algos.runs import (
    SETTINGS,
    CrashError,
    assert_equal,
    crash_at,
    crash_in,
    fit,
    make,
    make_tuned,
    outcome,
    run,
    seed,
    ticks,
)
from tests.subprocesses import run_processes


@functools.cache
def whole_run(algo_class: Any, **fields: Any) -> dict[str, Any]:
    """The outcome of a run that nothing stopped, which tests leave as it is."""
    seed(1)
    algo = make(algo_class, **fields)
    return outcome(algo, fit(algo, None))


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize(
    "algo_class", [SPINIQL, FactoredAWAC, AutoregressiveBCQ, DecQNIQL], ids=lambda a: a.__name__
)
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    algo_class: Any, stop: int, tmp_path: Path
) -> None:
    expected = whole_run(algo_class)
    seed(1)
    with pytest.raises(CrashError):
        fit(make(algo_class), tmp_path, callback=crash_at(stop))
    seed(1 if stop <= 3 and algo_class is not SPINIQL else 99)  # else from the start
    again = make(algo_class)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


@pytest.mark.parametrize("strategy", [d3rlpy.LoggingStrategy.EPOCH, d3rlpy.LoggingStrategy.STEPS])
def test_schedules_scalers_and_logs_within_epochs_go_on(strategy: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "actor_optim_factory": AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=9)),
        "observation_scaler": StandardObservationScaler(),
    }
    settings: dict[str, Any] = {"logging_strategy": strategy, "logging_steps": 3}
    seed(1)
    whole = make(FactoredIQL, **fields)
    expected = outcome(whole, fit(whole, None, **settings))
    fields["observation_scaler"] = StandardObservationScaler()
    seed(1)
    with pytest.raises(CrashError):
        fit(make(FactoredIQL, **fields), tmp_path, callback=crash_at(7), **settings)
    seed(99)
    fields["observation_scaler"] = StandardObservationScaler()
    again = make(FactoredIQL, **fields)
    assert_equal(expected, outcome(again, fit(again, tmp_path, **settings)))


@pytest.mark.parametrize("stop", [2, 5, 9])
def test_a_run_with_cached_features_goes_on(stop: int, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"train_queries": False, "cache_features": True}
    expected = whole_run(SPINIQL, **fields)
    seed(1)
    with pytest.raises(CrashError):
        fit(make(SPINIQL, **fields), tmp_path, callback=crash_at(stop))
    seed(99)
    again = make(SPINIQL, **fields)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


# Stage by stage: what crashes and at which call.
TUNED_CRASHES: list[tuple[Any, str, int]] = [
    (SPINIQL, "pretraining", 2),
    (SPINIQL, "pretraining", 8),
    (SPINIQL, "policy", 1),
    (SPINIQL, "policy", 2),
    (SPINIQL, "policy", 5),
    (SPINDistillIQL, "distillation", 5),
    (SPINDistillIQL, "policy", 2),
]


# By steps all of them, by a clock one of each stage, by work one of each kind.
TUNED_CASES: list[Any] = [
    *((*crash, None, ticks) for crash in TUNED_CRASHES[1::2]),
    *(pytest.param(*crash, None, ticks, marks=pytest.mark.slow) for crash in TUNED_CRASHES[::2]),
    (SPINIQL, "policy", 5, 240.0, ticks),
    pytest.param(SPINIQL, "pretraining", 2, 240.0, ticks, marks=pytest.mark.slow),
    pytest.param(SPINDistillIQL, "distillation", 5, 240.0, ticks, marks=pytest.mark.slow),
    *((SPINIQL, *crash, 0.5, WorkClock) for crash in (("pretraining", 8), ("policy", 2))),
]


def tuned_run(
    algo_class: Any,
    seconds: float | None,
    clock: Callable[[], Callable[[], float]],
    folder: Path | None = None,
    callback: Any = None,
) -> dict[str, Any]:
    """The outcome of a run by the tuned recipe."""
    budget = None if seconds is None else Budget(seconds, clock())
    algo = make_tuned(algo_class)
    return outcome(algo, fit(algo, folder, callback=callback, seconds=budget))


@functools.cache
def whole_tuned_run(algo_class: Any, *budget: Any) -> dict[str, Any]:
    """The outcome of one that nothing stopped, which tests leave as it is."""
    seed(1)
    return tuned_run(algo_class, *budget)


@pytest.mark.parametrize(("algo_class", "stage", "stop", "seconds", "clock"), TUNED_CASES)
def test_a_tuned_run_goes_on_in_every_stage(
    algo_class: Any,
    stage: str,
    stop: int,
    seconds: float | None,
    clock: Callable[[], Callable[[], float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recipe averages weights in pre-training and in the policy's training."""
    expected = whole_tuned_run(algo_class, seconds, clock)
    seed(1)
    with monkeypatch.context() as patches:
        if stage == "pretraining":
            crash_in(AnyOrderActionModeling, "add_gradients", stop, patches)
        elif stage == "distillation":
            crash_in(distillation, "backward", stop, patches)
        callback = crash_at(stop) if stage == "policy" else None
        with pytest.raises(CrashError):
            tuned_run(algo_class, seconds, clock, tmp_path, callback)
    # Before the first checkpoint a run starts from its own seed.
    seed(99 if any(tmp_path.glob("*.ckpt")) else 1)
    assert_equal(expected, tuned_run(algo_class, seconds, clock, tmp_path))


def test_a_finished_run_is_not_repeated_and_can_be_made_longer(tmp_path: Path) -> None:
    seed(1)
    algo = make(FactoredIQL)
    first = fit(algo, tmp_path, n_steps=8)
    again = make(FactoredIQL)
    assert fit(again, tmp_path, n_steps=8) == first
    assert again.grad_step == 8
    longer = fit(make(FactoredIQL), tmp_path, n_steps=12)
    assert longer[:2] == first
    assert len(longer) == 3


def test_a_run_whose_last_epoch_was_short_can_be_made_longer(tmp_path: Path) -> None:
    fit(make(FactoredIQL), tmp_path, n_steps=6)  # epochs of 4
    algo = make(FactoredIQL)
    rows = fit(algo, tmp_path, n_steps=8)
    assert [row["step"] for _, row in rows] == [4, 6, 8]
    assert algo.grad_step == 8


# -- real processes --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_killed_three_times_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    run_processes(run, [(whole, "none", 0, True)])
    # In pre-training, in training, while a checkpoint is written.
    for i, (stage, stop) in enumerate([("pretraining", 8), ("training", 7), ("writing", 1)]):
        run_processes(run, [(killed, stage, stop, i == 0)], expected=-signal.SIGKILL)
    assert list((killed / "checkpoints").glob(".*.partial"))  # it was killed in the act
    run_processes(run, [(killed, "none", 0, False)])
    assert not list((killed / "checkpoints").glob(".*.partial"))
    outcomes = [torch.load(folder / "outcome.pt") for folder in (whole, killed)]
    assert outcomes[0]["asm"] is not None
    assert_equal(*outcomes)


# -- signals ---------------------------------------------------------------------------------


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a program in the foreground has: shells start those in the background without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_the_step_it_came_at(tmp_path: Path) -> None:
    seed(1)
    whole = make(FactoredIQL)
    expected = outcome(whole, fit(whole, None))

    def interrupt(_algo: Any, _epoch: int, step: int) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    seed(1)
    with pytest.raises(KeyboardInterrupt):
        fit(make(FactoredIQL), tmp_path, callback=interrupt, checkpoint_interval=1_000)
    assert [p.name for p in tmp_path.glob("*.ckpt")] == ["training_0000000005.ckpt"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seed(99)
    again = make(FactoredIQL)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_after_the_last_step_is_not_lost(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1_000, {}, dict)
    with pytest.raises(KeyboardInterrupt), checkpoints.saving_on_interrupt():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_termination_saves_and_then_does_what_it_did_before(tmp_path: Path) -> None:
    received: list[int] = []

    def terminate(_algo: Any, _epoch: int, step: int) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
            assert not received  # held back until the step is saved

    before = signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        fit(make(FactoredIQL), tmp_path, callback=terminate, n_steps=3, checkpoint_interval=1_000)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert "training_0000000002.ckpt" in {p.name for p in tmp_path.glob("*.ckpt")}


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_in_pretraining_is_saved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("spin_d3rlpy.asm.objectives.masked")
    original, count = module.mask_actions, 0

    def mask_actions(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            signal.raise_signal(signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(module, "mask_actions", mask_actions)
    with pytest.raises(KeyboardInterrupt):
        fit(make(SPINIQL), tmp_path, checkpoint_interval=1_000)
    assert [p.name for p in tmp_path.glob("*.ckpt")] == ["pretraining_0000000004.ckpt"]


# -- files -----------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    seed(1)
    fit(make(FactoredIQL), tmp_path)
    return tmp_path


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_only_the_last_two_checkpoints_are_kept(finished: Path) -> None:
    names = sorted(p.name for p in finished.iterdir())
    assert names == ["training_0000000009.ckpt", "training_0000000011.ckpt"]


def test_of_a_damaged_checkpoint_the_one_before_is_used(finished: Path) -> None:
    seed(1)
    whole = make(FactoredIQL)
    expected = outcome(whole, fit(whole, None))
    spoil(finished / "training_0000000011.ckpt")
    again = make(FactoredIQL)
    with pytest.warns(UserWarning, match=r"0011.ckpt is damaged.*_0000000009.ckpt, is used"):
        results = fit(again, finished)
    assert_equal(expected, outcome(again, results))


def test_if_all_are_damaged_the_run_is_refused(finished: Path) -> None:
    for path in finished.glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:1_000])
    with pytest.raises(InvalidCheckpointError, match=r"damaged.*Remove"):
        fit(make(FactoredIQL), finished)


def test_checkpoints_of_an_earlier_run_are_not_overwritten(finished: Path) -> None:
    with pytest.raises(InvalidCheckpointError, match="resume=True"):
        fit(make(FactoredIQL), finished, resume=False)


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"tau": 0.5}, {}, "config was .*'tau': 0.005.*'tau': 0.5"),
        ({}, {"n_steps_per_epoch": 5}, "n_steps_per_epoch was 4, is 5"),
    ],
)
def test_another_runs_checkpoint_is_refused(
    finished: Path, fields: Any, settings: Any, message: str
) -> None:
    with pytest.raises(InvalidCheckpointError, match=f"another run: {message}"):
        fit(make(FactoredIQL, **fields), finished, **settings)


def test_other_data_are_another_run(finished: Path) -> None:
    with pytest.raises(InvalidCheckpointError, match="another run: data was"):
        make(FactoredIQL).fit(
            random_buffer(seed=3), checkpoint_dir=finished, resume=True, **SETTINGS
        )


def test_files_of_other_kinds_and_versions_are_refused(finished: Path) -> None:
    path = finished / "training_0000000011.ckpt"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"checkpoint 3 ", b"checkpoint 2 ", 1))
    with pytest.raises(InvalidCheckpointError, match="version 2, this spin-d3rlpy reads 3"):
        read_checkpoint(path)
    for other in (b"", b"something else\n", content[content.index(b"\n") + 1 :]):
        path.write_bytes(other)
        with pytest.raises(InvalidCheckpointError, match="not a checkpoint"):
            read_checkpoint(path)


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_interval of at least 1, got 0"):
        Checkpoints(tmp_path, 0, {}, dict)
