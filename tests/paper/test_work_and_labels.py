"""Jobs by a clock of work, on few labels, and with a model that was pre-trained before."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.paper import worker
from examples.paper.catalog import EXPERIMENTS, PaperSettings
from examples.paper.job import Job
from examples.paper.report import write_report
from examples.paper.settings import outdated
from examples.paper.specs import SCALES, Method, Scale
from spin_d3rlpy import SPINIQL, LockstepEvaluator
from tests.paper import test_experiments
from tests.paper.test_experiments import MAZE, maze_data, run

_maze = test_experiments._maze  # a fixture
maze = pytest.mark.usefixtures("_maze")
WORK = dataclasses.replace(SCALES["smoke"], clock="ops", maze_seconds=1.0)
COUNTED = Method("SPIN", "SPINIQL", labeled=0.3, pretrained="counted")


def result(root: Path, job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / job.name / "result.json").read_text())
    return content


def test_what_a_job_does_is_in_its_name() -> None:
    job = COUNTED.timed_job(MAZE, 0, Scale(), "cpu:0")
    changes: list[dict[str, Any]] = [
        {"clock": "ops"},
        {"labeled": 0.1},
        {"reward": "turn"},
        {"spent": 0.0},
        {"final_episodes": 100},
        {"asm": dataclasses.replace(job.asm, clock="ops") if job.asm else None},
    ]
    assert len({job.name, *(dataclasses.replace(job, **c).name for c in changes)}) == 7


def test_unknown_clocks_are_refused() -> None:
    with pytest.raises(ValueError, match="clock"):
        PaperSettings(["labels"], scale={"clock": "sun"}).complete()


def test_the_share_of_pretraining_is_the_recipes() -> None:
    pretraining = SPINIQL(recipe="tuned").config.policy.pretraining
    assert Scale().pretraining_share == pretraining.budget_share


def test_labels_are_those_of_whole_episodes_drawn_by_the_seed() -> None:
    dataset, env = maze_data()
    job = COUNTED.timed_job(MAZE, 0, Scale(), "cpu:0")
    chosen = [
        worker._change(dataclasses.replace(job, seed=seed), dataset, env)[0] for seed in (0, 0, 1)
    ]
    assert [c.size() for c in chosen] == [6, 6, 6]
    assert chosen[0].rewards.tolist() == chosen[1].rewards.tolist() != chosen[2].rewards.tolist()
    few = dataclasses.replace(job, labeled=0.001)
    assert worker._change(few, dataset, env)[0].size() == 1


@maze
@pytest.mark.slow
def test_pretraining_that_counts_and_pretraining_that_is_free(tmp_path: Path) -> None:
    jobs = {
        label: method.timed_job(MAZE, 0, WORK, "cpu:0")
        for label, method in {
            "counted": COUNTED,
            "free": dataclasses.replace(COUNTED, pretrained="free"),
            "none": dataclasses.replace(COUNTED, pretrained=None),
        }.items()
    }
    failed, order = run(tmp_path, *jobs.values())
    assert failed == []
    assert order == ["pretrain", "SPINIQL", "SPINIQL", "SPINIQL"]  # one model for both
    results = {label: result(tmp_path, job) for label, job in jobs.items()}
    assert results["counted"]["pretraining_seconds"] == pytest.approx(0.85, rel=0.1)
    for content in results.values():
        assert content["seconds"] == pytest.approx(1.0, rel=0.2)
        assert content["cpu_seconds"] > 0.0
    assert results["free"]["steps"] > 2 * results["counted"]["steps"]
    assert "pretraining_seconds" not in results["none"]
    with (tmp_path / jobs["counted"].name / "run" / "curve.csv").open() as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    assert seconds[0] == 0.85
    assert seconds == sorted(seconds)
    assert outdated(tmp_path, jobs.values()) == {}
    # Another day and machine: as many steps.
    run(tmp_path / "again", jobs["counted"])
    again = result(tmp_path / "again", jobs["counted"])
    kept = ("steps", "seconds", "return", "pretraining_step")
    assert {k: again[k] for k in kept} == {k: results["counted"][k] for k in kept}


@maze
@pytest.mark.slow
def test_final_episodes_count_and_reports_name_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Method("F", "FactoredIQL")
    experiment = dataclasses.replace(EXPERIMENTS["labels"], datasets=[MAZE], methods=[method])
    monkeypatch.setitem(EXPERIMENTS, "labels", experiment)
    played: list[tuple[str, int]] = []
    returns = [-1.0, -2.0]

    class Evaluator(LockstepEvaluator):
        def returns(self, *_: Any) -> NDArray[np.float64]:
            played.append((self.mode, len(self.seeds)))
            return returns[len(played) - 1] + np.array([-0.5, 0.5])

    monkeypatch.setattr(worker, "LockstepEvaluator", Evaluator)
    changes = {"clock": "ops", "level": None, "final_episodes": 3}
    settings = PaperSettings(["labels"], "smoke", scale=changes).complete()
    [job] = settings.jobs()
    assert run(tmp_path, job)[0] == []
    # Evaluations on the way have one episode; three of the trained policy are what counts.
    assert played == [("sample", 3), ("greedy", 3)]
    assert result(tmp_path, job)["return"] == returns[0]
    assert result(tmp_path, job)["greedy_return_std"] == 0.5
    write_report(tmp_path, tmp_path / "report", settings)
    with (tmp_path / "report" / "labels_cost.csv").open() as file:
        assert [float(row["cpu_seconds"]) > 0.0 for row in csv.DictReader(file)] == [True]


def test_the_experiments_have_a_row_for_each_dataset_and_a_column_for_each_method() -> None:
    scale = SCALES["paper"]
    labels = EXPERIMENTS["labels"].jobs(scale, [0], "cpu:0", ["finger"])
    assert len(labels) == 2 * 4 * 4
    assert {job.labeled for _, _, job in labels} == {0.01, 0.03, 0.1, 0.3}
    reuse = EXPERIMENTS["reuse"].jobs(scale, [0], "cpu:0")
    by_domain = {
        task: [job.reward for dataset, _, job in reuse if task in dataset]
        for task in ("finger", "cheetah")
    }
    assert by_domain["finger"] == [*[None] * 3, *["turn"] * 3]
    assert by_domain["cheetah"] == [*[None] * 3, *["backward"] * 3, *["half-speed"] * 3]
    models = {job.asm.name for _, _, job in reuse if job.asm is not None}
    assert len(models) == 2  # one for each environment
