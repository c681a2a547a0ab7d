"""What a run keeps: with a full disk, in a shared folder, with an infinite loss, at its best."""

from __future__ import annotations

import math
import os
import re
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.constants import LoggingStrategy
from d3rlpy.logging import FileAdapterFactory
from d3rlpy.optimizers import SGDFactory

from spin_d3rlpy import SPINIQL, FactoredIQL, load_policy
from spin_d3rlpy.algos import SPINDistillIQL
from spin_d3rlpy.algos import fit as fitting
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.errors import (
    CheckpointWriteError,
    DivergenceError,
    FolderInUseError,
    InvalidCheckpointError,
)
from spin_d3rlpy.files.atomic import partial_path
from spin_d3rlpy.training import checkpoints as stored
from spin_d3rlpy.training.checkpoints import (
    Checkpoints,
    random_state,
    read_checkpoint,
    set_random_state,
    write_checkpoint,
)
from spin_d3rlpy.training.loop import Loop, Run
from tests.algos.problems import OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields
from tests.algos.runs import (
    SETTINGS,
    CrashError,
    assert_equal,
    crash_at,
    fit,
    make,
    outcome,
    seed,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt"))


def checkpoint(step: int) -> str:
    return f"training_{step:010d}.ckpt"


def at_step(step: int, do: Callable[[Any], object]) -> Any:
    def callback(algo: Any, _epoch: int, found: int) -> None:
        if found == step:
            do(algo)

    return callback


# -- writing ---------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_leaves_the_checkpoint_before_and_the_run_goes_on_later(tmp_path: Path) -> None:
    seed(1)
    whole = make(FactoredIQL)
    expected = outcome(whole, fit(whole, None))

    def fill(_algo: Any) -> None:
        partial_path(tmp_path / checkpoint(6)).symlink_to("/dev/full")

    seed(1)
    with pytest.raises(
        CheckpointWriteError,
        match=rf"{checkpoint(6)} could not be written \(No space left.*{checkpoint(3)} is intact",
    ):
        fit(make(FactoredIQL), tmp_path, callback=at_step(5, fill))
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint(3)]
    seed(99)
    again = make(FactoredIQL)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


@pytest.fixture
def writable() -> Iterator[Path]:
    """A folder that users other than root can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o777)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            yield path
        finally:
            os.seteuid(before)
            path.chmod(0o777)


def test_a_read_only_folder_is_refused_before_the_first_step(writable: Path) -> None:
    _as_owner(writable, 0o555)
    with pytest.raises(CheckpointWriteError, match=r"cannot be written to .* \(Permission denied"):
        Checkpoints(writable, 1, {}, dict).start(resume=True)


def test_a_folder_that_becomes_read_only_keeps_its_checkpoint(writable: Path) -> None:
    with Checkpoints(writable, 1, {}, dict) as checkpoints:
        checkpoints.start(resume=True)
        checkpoints.save("training", 1, {})
        before = (writable / checkpoint(1)).read_bytes()
        _as_owner(writable, 0o555)
        with pytest.raises(CheckpointWriteError, match=f"{checkpoint(1)} is intact"):
            checkpoints.save("training", 2, {})
    assert {p.name: p.read_bytes() for p in writable.iterdir()} == {checkpoint(1): before}


def _as_owner(folder: Path, mode: int) -> None:
    user = os.geteuid()
    os.seteuid(folder.stat().st_uid if os.getuid() == 0 else user)
    folder.chmod(mode)
    os.seteuid(user)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointWriteError, match=r"cannot be written to .* \(Not a directory"):
        fit(make(FactoredIQL), tmp_path / "file" / "run")


@pytest.mark.parametrize(("kept", "steps"), [(1, [11]), (3, [6, 9, 11]), (9, [3, 6, 9, 11])])
def test_so_many_checkpoints_are_kept(kept: int, steps: list[int], tmp_path: Path) -> None:
    fit(make(FactoredIQL), tmp_path, keep_checkpoints=kept)
    assert names(tmp_path) == [checkpoint(step) for step in steps]


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_checkpoints of at least 1, got 0"):
        fit(make(FactoredIQL), tmp_path, keep_checkpoints=0)


# -- untrusted files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["shared"]["networks"].popitem(), "lacks a part of this algorithm's state"),
        (lambda c: c["shared"].update(networks=7), "lacks a part of this algorithm's state"),
        (lambda c: c.pop("state"), "not a checkpoint"),
        (lambda c: c.pop("shared"), "not a checkpoint"),
    ],
)
def test_checkpoints_with_other_contents_are_refused(
    change: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    fit(make(FactoredIQL), tmp_path, n_steps=3, keep_checkpoints=1)
    [path] = tmp_path.glob("*.ckpt")
    content = read_checkpoint(path)
    change(content)
    write_checkpoint(path, content)
    with pytest.raises(InvalidCheckpointError, match=message):
        fit(make(FactoredIQL), tmp_path)


class MakesFolder:
    """Malicious content: unpickling it executes code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_what_a_checkpoint_wants_run_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / checkpoint(1)
    content = dict.fromkeys(("identity", "stage", "step", "shared", "state", "random"), 0)
    write_checkpoint(path, {**content, "state": MakesFolder(tmp_path / "made")})
    with pytest.raises(InvalidCheckpointError, match="cannot be read"):
        read_checkpoint(path)
    assert not (tmp_path / "made").exists()


def test_scaled_observations_are_other_data(tmp_path: Path) -> None:
    fit(make(FactoredIQL), tmp_path)
    scaled = random_buffer()
    scaled.observations.mul_(2.0)
    with pytest.raises(InvalidCheckpointError, match="another run: data was"):
        make(FactoredIQL).fit(scaled, checkpoint_dir=tmp_path, resume=True, **SETTINGS)


# -- sharing ---------------------------------------------------------------------------------


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    def second(_algo: Any) -> None:
        with pytest.raises(FolderInUseError, match=re.escape(f"Another run is using {tmp_path}.")):
            fit(make(FactoredIQL), tmp_path)

    fit(make(FactoredIQL), tmp_path, callback=at_step(5, second))
    assert names(tmp_path) == [checkpoint(9), checkpoint(11)]
    with pytest.raises(CrashError):
        fit(make(FactoredIQL), tmp_path, n_steps=20, callback=crash_at(14))
    fit(make(FactoredIQL), tmp_path, n_steps=20)  # whatever ended a run freed the folder


class Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Clock:
        return cls(2026, 11, 21)


def test_runs_that_start_together_log_into_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "datetime", Clock)
    for _ in range(3):
        fit(make(FactoredIQL), None, logger_adapter=FileAdapterFactory(str(tmp_path)))
    folders = sorted(path.name for path in tmp_path.iterdir())
    name = "FactoredIQL_20261121000000"
    assert folders == [name, f"{name}_2", f"{name}_3"]
    for folder in tmp_path.iterdir():
        rows = (folder / "noise.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows] == ["1", "2", "3"]


def test_a_log_folder_in_use_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "logger_adapter": FileAdapterFactory(str(tmp_path)),
        "with_timestamp": False,
        "experiment_name": "mine",
    }

    def second(_algo: Any) -> None:
        with pytest.raises(FolderInUseError, match="mine"):
            fit(make(FactoredIQL), None, **settings)

    fit(make(FactoredIQL), None, callback=at_step(5, second), **settings)
    assert len((tmp_path / "mine" / "noise.csv").read_text().splitlines()) == 3


# -- divergence ------------------------------------------------------------------------------


def explode(algo: Any) -> None:
    parameter = next(iter(algo.impl.modules.get_torch_modules().values())).parameters()
    next(parameter).data.mul_(math.inf)


def test_a_run_that_diverges_stops_and_keeps_what_was_good(tmp_path: Path) -> None:
    seed(1)
    whole = make(FactoredIQL)
    expected = outcome(whole, fit(whole, None))
    seed(1)
    with pytest.raises(DivergenceError, match=f"step 9 of training.*is .*{checkpoint(6)}.*lower"):
        fit(make(FactoredIQL), tmp_path, callback=at_step(8, explode))
    assert names(tmp_path) == [checkpoint(3), checkpoint(6)]
    for path in tmp_path.glob("*.ckpt"):
        for part in read_checkpoint(path)["shared"]["networks"].values():
            assert all(torch.isfinite(v).all() for v in part.values() if torch.is_tensor(v))
    seed(99)
    again = make(FactoredIQL)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


@pytest.mark.parametrize("strategy", [LoggingStrategy.EPOCH, LoggingStrategy.STEPS])
def test_a_loss_that_is_not_finite_stops_the_run_when_it_is_logged(strategy: Any) -> None:
    sgd = SGDFactory()
    algo = make(
        FactoredIQL,
        critic_optim_factory=sgd,
        actor_optim_factory=sgd,
        critic_learning_rate=1e10,
        actor_learning_rate=1e10,
    )
    message = r"diverged: \w+_loss is (nan|inf) at step 4 of training or before. There is no|lower"
    with pytest.raises(DivergenceError, match=message):
        fit(algo, None, logging_strategy=strategy, logging_steps=4, n_steps_per_epoch=8)
    assert algo.grad_step == (8 if strategy == LoggingStrategy.EPOCH else 4)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_pretraining_that_diverges_stops(checkpoints: bool, tmp_path: Path) -> None:
    algo = make(SPINIQL)
    algo.config.policy.pretraining = PretrainingConfig(
        batch_size=32, max_updates=10, learning_rate=1e10, clip_grad_norm=1e12
    )
    with pytest.raises(DivergenceError, match="of pretraining"):
        fit(algo, tmp_path if checkpoints else None)
    assert algo.grad_step == 0


def test_a_student_that_diverges_stops() -> None:
    algo = new_algorithm(
        SPINDistillIQL,
        **{
            **tiny_fields(SPINDistillIQL),
            "distillation": DistillationConfig(
                n_updates=9, batch_size=16, validation_interval=3, learning_rate=1e10
            ),
        },
    )
    with pytest.raises(DivergenceError, match="of student"):
        algo.fit(random_buffer(), **SETTINGS)


# -- the best epoch --------------------------------------------------------------------------

SCORES = {4: 1.0, 8: 3.0, 12: 2.0, 16: math.nan, 20: 3.0, 24: 9.0}  # by step
BEST: dict[str, Any] = {
    "n_steps": 24,
    "evaluators": {"score": lambda algo, _: SCORES[algo.grad_step]},
    "best_by": "score",
}


def test_training_stops_when_no_better_epoch_comes(tmp_path: Path) -> None:
    algo = make(FactoredIQL)
    results = fit(algo, tmp_path, patience=3, **BEST)
    assert [metrics["score"] for _, metrics in results[:3]] == [1.0, 3.0, 2.0]
    assert len(results) == 5  # the best one was the second, and 3.0 again is not better
    assert algo.grad_step == 20
    again = make(FactoredIQL)
    assert_equal([epoch for epoch, _ in fit(again, tmp_path, patience=3, **BEST)], [1, 2, 3, 4, 5])
    assert again.grad_step == 20  # it had ended, and ended it stays


def test_without_patience_only_the_best_policy_is_kept(tmp_path: Path) -> None:
    algo = make(FactoredIQL)
    assert len(fit(algo, tmp_path, **BEST)) == 6
    best = load_policy(tmp_path / "best.safetensors")
    assert best.grad_step == 24


@pytest.mark.parametrize("strategy", [LoggingStrategy.EPOCH, LoggingStrategy.STEPS])
def test_the_best_epochs_policy_is_kept(strategy: Any, tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(50, OBSERVATION_SIZE)).astype(np.float32)
    values: dict[int, Any] = {}

    def remember(algo: Any, epoch: int, _step: int) -> None:
        actions = algo.predict(observations)
        values[epoch] = algo.predict_value(observations, actions)

    settings = {**BEST, "best_is": "lowest", "logging_strategy": strategy, "logging_steps": 3}
    fit(make(FactoredIQL), tmp_path, epoch_callback=remember, **settings)
    best = load_policy(tmp_path / "best.safetensors")
    assert best.grad_step == 4
    assert np.array_equal(best.predict_value(observations, best.predict(observations)), values[1])


@pytest.mark.parametrize("stop", [3, 8, 9, 13, 19])
def test_a_run_that_goes_on_keeps_the_same_best_epoch(stop: int, tmp_path: Path) -> None:
    contents = []
    for folder, stops in ((tmp_path / "whole", []), (tmp_path / "killed", [stop])):
        for step in stops:
            seed(1)
            with pytest.raises(CrashError):
                fit(make(FactoredIQL), folder, patience=3, callback=crash_at(step), **BEST)
        seed(1 if not stops or stop == 3 else 99)
        fit(make(FactoredIQL), folder, patience=3, **BEST)
        contents.append((folder / "best.safetensors").read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_by": "return"}, r"one of the evaluators \(noise\), got 'return'"),
        ({"patience": 3}, "patience needs best_by"),
        ({"best_by": "noise", "checkpoint_dir": None}, "best_by needs checkpoint_dir"),
        ({"best_by": "noise", "patience": 0}, "patience of at least 1, got 0"),
        ({"best_by": "noise", "best_is": "largest"}, "'highest' or 'lowest', got 'largest'"),
    ],
)
def test_impossible_wishes_are_refused(settings: Any, message: str, tmp_path: Path) -> None:
    folder = settings.pop("checkpoint_dir", tmp_path)
    with pytest.raises(ValueError, match=message):
        fit(make(FactoredIQL), folder, **settings)


def test_an_epoch_without_a_number_is_never_the_best() -> None:
    loop = Loop(Run(show_progress=False), "training", 9, 1, patience=2)
    for score in (math.nan, math.nan):
        assert not loop.is_best(score)
        loop.add_row({}, score)
    assert loop.best == 0
    assert loop.is_over(len(loop.rows))
    assert loop.is_best(-7.0)
    loop.add_row({}, -7.0)
    assert loop.best == 3


def test_a_run_resumes_where_fewer_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state()
    state["cuda"] = [torch.tensor([i], dtype=torch.uint8) for i in range(3)]
    found: list[list[torch.Tensor]] = []
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", found.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    set_random_state(state)
    assert [states[0].item() for states in found] == [0]
    assert len(found[0]) == 1


def test_a_large_sparse_file_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(f"{stored.MAGIC} {stored.VERSION} 0\n".encode())
    os.truncate(path, 200 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidCheckpointError, match="checksum"):
            stored.read_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
