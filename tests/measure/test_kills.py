"""Runs, the paper's jobs and their program, killed at random moments, end as if left alone."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spin_d3rlpy.asm import load_asm
from tests.measure import kills, victims
from tests.measure.kills import digest, kill_until_done, run_kill_benchmark
from tests.subprocesses import import_path, import_path_for_children


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_like_one_left_alone(tmp_path: Path) -> None:
    with import_path_for_children():
        rows = kill_until_done(kills.train, 4, tmp_path)
    assert len(rows) == 4
    assert all(row["identical"] for row in rows), rows


@pytest.mark.slow
def test_a_run_that_depends_on_kills_is_found_out(tmp_path: Path) -> None:
    with import_path_for_children():
        rows = kill_until_done(victims.forgetful, 3, tmp_path)
    assert not any(row["identical"] for row in rows if row["moment"] == "counting")


@pytest.mark.slow
def test_a_run_that_fails_by_itself_is_an_error(tmp_path: Path) -> None:
    with import_path_for_children(), pytest.raises(RuntimeError, match="exit code 1"):
        kill_until_done(victims.failing, 3, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills(tmp_path: Path) -> None:
    with import_path_for_children():
        assert run_kill_benchmark(tmp_path / "kills.csv", 50)
    with (tmp_path / "kills.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    assert {row["identical"] for row in rows} == {"True"}
    expected = {"pre-training", "updates", "evaluation", "writing a checkpoint"}
    assert expected <= {row["moment"] for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_benchmark_jobs_killed_fifty_times(tmp_path: Path) -> None:
    """A pre-training and a training job, with a checkpoint after every step."""
    with import_path_for_children():
        rows = kill_until_done(victims.benchmark_jobs, 50, tmp_path)
    assert all(row["identical"] for row in rows), rows
    assert {row["moment"] for row in rows} >= {"pretrain", "train"}


def test_digests_tell_contents_apart() -> None:
    one = {"a": torch.zeros(2, 3), "b": [1, 2.0, None]}
    assert digest(one) == digest({"a": torch.zeros(2, 3), "b": [1, 2.0, None]})
    for other in (
        {**one, "a": torch.zeros(3, 2)},
        {**one, "a": torch.zeros(2, 3).double()},
        {**one, "a": -torch.zeros(2, 3)},
        {**one, "b": [1, 2.5, None]},
        {"b": one["b"], "a": one["a"], "c": 0},
    ):
        assert digest(other) != digest(one)


# -- the paper's program ------------------------------------------------------------------------

TASK = "cheetah-run-b3/medium-v0"
RUN = ["run", "early", "--preset", "smoke", "--task", TASK, "--workers", "2"]


def _run(folder: Path, kill_after: float | None = None, group: bool = True) -> int:
    """Runs the command, killed after this many seconds, with or without its workers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.paper", *RUN, "--folder", str(folder)],
        env={**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(kill_after)
    except subprocess.TimeoutExpired:
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()  # its workers continue
        return process.wait()


def _results(folder: Path) -> dict[str, Any]:
    """All jobs' curves and models, without what took how long."""
    found: dict[str, Any] = {}
    for job in sorted(folder.iterdir()):
        result = json.loads((job / "result.json").read_text())
        found[job.name] = {k: v for k, v in result.items() if "seconds" not in k}
        for path in sorted(job.glob("*.safetensors")):
            found[f"{job.name}/{path.name}"] = digest(load_asm(path).state_dict())
        if (job / "run" / "curve.csv").exists():
            with (job / "run" / "curve.csv").open() as file:
                found[f"{job.name}/curve"] = [
                    {k: v for k, v in row.items() if "seconds" not in k}
                    for row in csv.DictReader(file)
                ]
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_experiments_killed_with_and_without_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    started = time.monotonic()
    assert _run(tmp_path / "whole") == 0
    seconds = time.monotonic() - started
    assert len(_results(tmp_path / "whole")) > 5
    moments = random.Random(0)
    killed = 0
    for number in range(3):
        folder = tmp_path / f"killed_{number}"
        # Each attempt has less to do: jobs that are done stay done.
        for share in (0.6, 0.4, 0.2):
            after = moments.uniform(0.5, 1.0) * share * seconds
            killed += _run(folder, after, group=moments.random() < 0.7) < 0
        assert _run(folder) == 0
        assert _results(folder) == _results(tmp_path / "whole")
    assert killed >= 3
