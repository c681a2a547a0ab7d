"""Every experiment from the command line, at the size that shows only that it runs."""

from __future__ import annotations

import csv
import html
import itertools
import json
import time
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.paper import grid, worker
from examples.paper.__main__ import app
from examples.paper.catalog import EXPERIMENTS, PaperSettings
from examples.paper.grid import is_done, with_requirements
from examples.paper.report import write_report
from examples.paper.specs import SCALES
from tests.paper.test_experiments import InProcess


@pytest.fixture(autouse=True)
def _datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)


def smoke(tmp_path: Path, names: Sequence[str], tasks: Sequence[str] = ()) -> str:
    """Runs experiments; returns the report on them, with the jobs' folders left in `jobs`."""
    arguments = ["run", *names, "--preset", "smoke", *(f"--task={t}" for t in tasks)]
    result = CliRunner().invoke(app, [*arguments, "--folder", str(tmp_path / "jobs")])
    assert result.exit_code == 0, result.output
    out, jobs = tmp_path / "report", tmp_path / "jobs"
    write_report(jobs, out, PaperSettings(list(names), "smoke", seeds=1, tasks=list(tasks)))
    return (out / "report.html").read_text()


@pytest.mark.slow
def test_smoke_of_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Processes, which import everything first, are those of `test_experiments.py`.
    monkeypatch.setattr(grid, "LocalEngine", lambda *_: InProcess())
    report = smoke(tmp_path, ["maze"], ["maze-a5/"])
    # Four methods and SPIN's pre-training.
    assert len(list(tmp_path.glob("jobs/*/result.json"))) == 5
    assert report.count(">maze-a5/random</td>") >= 4


@pytest.mark.slow
def test_trainings_with_equal_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "LocalEngine", lambda *_: InProcess())
    # A clock on which every step takes 50 ms, on any machine.
    clock = types.SimpleNamespace(
        monotonic=time.monotonic, process_time=itertools.count(0, 0.05).__next__
    )
    monkeypatch.setattr(worker, "time", clock)
    report = smoke(tmp_path, ["tuned"], ["cheetah-run-b3/medium-expert"])
    results = [json.loads(p.read_text()) for p in tmp_path.glob("jobs/*/result.json")]
    seconds = [result["seconds"] for result in results]  # SPIN's pre-training included
    assert seconds == pytest.approx([1.0] * 5, abs=0.15)
    assert "by seconds of training" in report
    with (tmp_path / "report" / "tuned_by_second.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"F", "AR", "SAINT", "SPIN", "joint with search"}
    assert all(row["greedy"] and row["sampled"] for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_smoke_finishes_every_experiment(tmp_path: Path) -> None:
    report = smoke(tmp_path, list(EXPERIMENTS))
    scale = SCALES["smoke"]
    jobs = [j for e in EXPERIMENTS.values() for _, _, j in e.jobs(scale, [0], "cpu:0")]
    assert all(is_done(tmp_path / "jobs", job) for job in with_requirements(jobs))
    for name, experiment in EXPERIMENTS.items():
        assert (tmp_path / "report" / f"{name}.csv").exists()
        assert html.escape(experiment.title) in report
