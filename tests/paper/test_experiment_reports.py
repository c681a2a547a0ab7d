"""Tables, statistics and reports of finished jobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.paper.catalog import EXPERIMENTS, PaperSettings
from examples.paper.job import Job
from examples.paper.report import write_report
from examples.paper.specs import SCALES
from examples.paper.tables import (
    aggregate_rows,
    cost_rows,
    curve_rows,
    curves,
    final_returns_of_baseline,
    interquartile_mean,
    interval,
    mean_rows,
    pretraining_rows,
    probability_of_improvement,
    read_cells,
    read_published,
    return_rows,
    scores_by_method,
    target_rows,
)
from spin_d3rlpy.files.results import read_csv
from spin_envs import normalized_score

SMOKE = dataclasses.replace(SCALES["smoke"], level=None)
SEEDS = [0, 1, 2]
CHEETAH = "spin/cheetah-run-b3/medium-expert-v0"
FINGER = "spin/finger-spin-b3/medium-expert-v0"


def settings(
    *experiments: str,
    seeds: int = 3,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    **scale: Any,
) -> PaperSettings:
    scale["level"] = None
    return PaperSettings(list(experiments), "smoke", scale, seeds, list(tasks), list(methods))


def finish(root: Path, job: Job, returns: list[float], pretraining_seconds: float = 0.0) -> None:
    """Leaves what a finished job leaves, with an evaluation every 10 steps, a minute each."""
    folder = root / job.name
    folder.mkdir(parents=True)
    result = {"return": returns[-1], "update_seconds": 5.0, "evaluation_seconds": 1.0}
    result["greedy_return"] = returns[-1] + 1.0
    if pretraining_seconds:
        result["pretraining_seconds"] = pretraining_seconds
    (folder / "result.json").write_text(json.dumps(result))
    lines = [f"{10 * i},{value},{value + 1},{60 * i}" for i, value in enumerate(returns)]
    header = "step,return,greedy_return,update_seconds"
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "curve.csv").write_text("\n".join([header, *lines]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """F and SPIN on two datasets; the second lacks SAINT, which the first has."""
    for dataset, label, job in EXPERIMENTS["returns"].jobs(SMOKE, SEEDS, "cpu:0", [CHEETAH]):
        assert dataset == CHEETAH
        if label == "F":
            finish(tmp_path, job, [1.0, 50.0, 100.0 + 10 * job.seed])
        if label == "SPIN":
            reached = [1.0, 150.0, 200.0] if job.seed else [1.0, 60.0, 80.0]
            finish(tmp_path, job, reached, pretraining_seconds=120.0)
        if label == "SAINT":
            finish(tmp_path, job, [1.0, 50.0, 90.0])
    for _, label, job in EXPERIMENTS["returns"].jobs(SMOKE, SEEDS, "cpu:0", [FINGER]):
        if label in ("F", "SPIN"):
            finish(tmp_path, job, [1.0, 2.0, 300.0])
    return tmp_path


def test_returns_are_means_over_seeds_beside_published_figures(root: Path) -> None:
    experiment = EXPERIMENTS["returns"]
    cells = read_cells("returns", root, settings(tasks=[CHEETAH]))
    rows = {row["method"]: row for row in return_rows(experiment, cells, {})}
    assert set(rows) == {"F", "SAINT", "SPIN"}
    assert rows["F"]["return"] == 110.0
    assert rows["F"]["std"] == 10.0
    assert 100 <= rows["F"]["low"] < 110 < rows["F"]["high"] <= 120
    assert rows["F"]["greedy_return"] == 111.0
    assert rows["F"]["published"] == 612.9
    assert rows["F"]["difference"] == round(110.0 - 612.9, 1)
    assert rows["SPIN"]["published"] == 651.1
    costs = {row["method"]: row for row in cost_rows(cells)}
    assert (costs["F"]["pretraining_seconds"], costs["SPIN"]["pretraining_seconds"]) == (0, 120)
    assert costs["F"]["update_seconds"] == 5.0
    sampled, greedy = (curves(cells, name)[CHEETAH]["F"] for name in ("return", "greedy_return"))
    assert sampled.returns.shape == (3, 3)
    np.testing.assert_array_equal(greedy.returns, sampled.returns + 1)


def test_early_returns_are_percentages_of_full_ones(root: Path) -> None:
    for _, label, job in EXPERIMENTS["early"].jobs(SMOKE, SEEDS, "cpu:0", [CHEETAH]):
        if label == "SPIN":
            finish(root, job, [1.0, 55.0])
    baseline = final_returns_of_baseline(root, settings())
    assert baseline == {CHEETAH: 110.0, FINGER: 300.0}
    early = EXPERIMENTS["early"]
    cells = read_cells("early", root, settings())
    [row] = return_rows(early, cells, baseline)
    assert row["percent_of_final_F"] == 50.0
    assert row["published_percent"] > 0
    assert "published" not in row
    for unknown in ({}, {CHEETAH: 0.0}):
        [row] = return_rows(early, cells, unknown)
        assert row["percent_of_final_F"] == ""


def test_a_report_of_some_methods(root: Path) -> None:
    write_report(root, root / "out", settings("returns", methods=["F", "SPIN"]))
    rows = read_csv(root / "out" / "returns.csv")
    assert {row["method"] for row in rows} == {"F", "SPIN"}
    # What F returns after all steps is known although the report leaves it out.
    only = settings("early", methods=["SPIN"])
    assert final_returns_of_baseline(root, only) == {CHEETAH: 110.0, FINGER: 300.0}


def test_time_to_target_counts_pretraining_and_seeds_that_miss_it(root: Path) -> None:
    cells = read_cells("returns", root, settings(tasks=[CHEETAH]))
    rows = {row["method"]: row for row in target_rows(cells)}
    assert rows["SPIN"]["target"] == 104.5  # 95 % of 110
    assert rows["SPIN"]["reached"] == "2 of 3"
    assert rows["SPIN"]["median_steps"] == 10
    assert rows["SPIN"]["median_minutes"] == 3.0  # two of pre-training, one of updates
    assert rows["F"]["reached"] == "2 of 3"
    assert rows["F"]["median_steps"] == 20
    assert rows["SAINT"]["reached"] == "0 of 3"
    assert rows["SAINT"]["median_steps"] == ""
    without_baseline = [cell for cell in cells if cell.label != "F"]
    assert target_rows(without_baseline) == []


def test_scores_are_compared_over_the_datasets_that_all_methods_have(root: Path) -> None:
    cells = read_cells("returns", root, settings())
    scores = scores_by_method(cells)
    assert {label: len(strata) for label, strata in scores.items()} == {
        "F": 1,
        "SAINT": 1,
        "SPIN": 1,
    }
    expected = [normalized_score(CHEETAH, x) for x in (100.0, 110.0, 120.0)]
    np.testing.assert_allclose(scores["F"][0], expected)
    rows = {(row["method"], row["actions"]): row for row in aggregate_rows(cells)}
    assert rows["SAINT", "sampled"]["low"] == rows["SAINT", "sampled"]["high"]
    baseline, greedy = rows["F", "sampled"], rows["F", "greedy"]
    assert baseline["low"] < baseline["interquartile_mean_score"] < baseline["high"]
    assert greedy["interquartile_mean_score"] > baseline["interquartile_mean_score"]
    assert (rows["SAINT", "sampled"]["improvement"], baseline["improvement"]) == (0.0, "")


def test_levels_are_aggregated_apart_and_together(root: Path) -> None:
    cells = read_cells("returns", root, settings(tasks=[CHEETAH]))
    better = [{"return": 550.0, "greedy_return": 560.0}] * 3
    mixed = CHEETAH.replace("medium-expert", "random-medium-expert")
    both = [*cells, *(dataclasses.replace(cell, dataset=mixed, results=better) for cell in cells)]
    rows = [row for row in aggregate_rows(both) if row["method"] == "F"]
    rows = [row for row in rows if row["actions"] == "sampled"]
    levels = ["medium-expert", "random-medium-expert", "all"]
    assert [row["level"] for row in rows] == levels
    assert [row["runs"] for row in rows] == [3, 3, 6]
    good, better_still, together = (row["interquartile_mean_score"] for row in rows)
    assert good < together < better_still
    assert {row["level"] for row in aggregate_rows(cells)} == {"medium-expert"}


def test_every_evaluation_of_every_seed_is_kept(root: Path) -> None:
    cells = read_cells("returns", root, settings(tasks=[CHEETAH]))
    rows = [row for row in curve_rows(cells) if row["method"] == "F"]
    assert [(row["seed"], row["step"]) for row in rows] == [
        (seed, step) for seed in SEEDS for step in (0, 10, 20)
    ]
    assert [row["return"] for row in rows[6:]] == [1.0, 50.0, 120.0]


def test_returns_by_steps_and_both_ways_of_acting(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["mask-ratio"]
    for _, label, job in experiment.jobs(SMOKE, SEEDS, "cpu:0", [CHEETAH]):
        if label == "fixed 0.15":
            finish(tmp_path, job, [1.0 + job.seed, 50.0, 80.0])
    cells = read_cells("mask-ratio", tmp_path, settings(tasks=[CHEETAH]))
    first, _, last = mean_rows(cells, "step")
    assert first["sampled"] == 2.0
    assert first["greedy"] == 3.0
    assert (last["step"], last["sampled"]) == (20, 80.0)


def test_pretraining_is_told_once_for_the_methods_that_share_it(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["mask-ratio"]
    for _, label, job in experiment.jobs(SMOKE, SEEDS[:2], "cpu:0", [CHEETAH]):
        finish(tmp_path, job, [1.0, 2.0])
        assert job.asm is not None
        folder = tmp_path / job.asm.name
        folder.mkdir(exist_ok=True)
        accuracy = 0.9 if "uniform" in label else 0.5
        header = "epoch,step,loss,validation_slot_accuracy_at_0.15,validation_exact_accuracy_at_1"
        lines = [f"{e},{10 * e},0.5,{accuracy + e / 100},0.1" for e in (1, 2)]
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "curve.csv").write_text("\n".join([header, *lines]))
    cells = read_cells("mask-ratio", tmp_path, settings(seeds=2, tasks=[CHEETAH]))
    rows = pretraining_rows(cells)
    assert [(row["method"], row["seed"], row["step"]) for row in rows] == [
        (method, seed, step)
        for method in ("fixed 0.15", "uniform [0.15, 1]")
        for seed in (0, 1)
        for step in (10, 20)
    ]
    out = tmp_path / "out"
    files = write_report(tmp_path, out, settings("mask-ratio", seeds=2))
    names = {file.name for file in files}
    assert names >= {
        "mask-ratio_curves.csv",
        "mask-ratio_by_step.csv",
        "mask-ratio_pretraining.csv",
    }


def test_statistics() -> None:
    assert interquartile_mean([np.array([100.0, 1.0]), np.array([2.0, -50.0])]) == 1.5
    # One task: better than one run of two, equal to the other; another task: always worse.
    ours = [np.array([2.0]), np.array([1.0, 2.0])]
    theirs = [np.array([1.0, 2.0]), np.array([3.0])]
    assert probability_of_improvement([*ours, *theirs]) == 0.375
    assert interval([*ours, *theirs], probability_of_improvement) == (0.25, 0.5)
    # Only seeds are resampled, so constant tasks leave no uncertainty however far apart they are.
    assert interval([np.array([1.0, 1.0]), np.array([9.0, 9.0])]) == (5.0, 5.0)
    values = np.random.default_rng(1).normal(size=400)
    low, high = interval([values])
    deviation = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * deviation, abs=0.3 * deviation)
    assert high == pytest.approx(values.mean() + 1.96 * deviation, abs=0.3 * deviation)


def test_a_report_opens_offline_and_has_everything(root: Path) -> None:
    out = root / "out"
    files = write_report(root, out, settings("returns", "early"))
    names = {"", "_cost", "_time_to_target", "_aggregate"}
    assert {file.name for file in files} == {
        *(f"returns{name}.csv" for name in names),
        "returns_curves.csv",
        "returns.png",
        "returns_greedy.png",
        "report.html",
    }
    assert all(file.exists() for file in files)
    text = (out / "report.html").read_text()
    assert "http" not in text
    assert text.count("data:image/png;base64,") == 2
    assert "greedy return" in text
    assert "651.1" in text
    assert "<h1>Results at scale smoke, level=None</h1>" in text
    assert ">cheetah-run-b3/medium-expert</td>" in text
    assert "70 epochs" in text  # what is known about the published figures


def test_a_report_says_what_differs_from_the_preset(root: Path) -> None:
    write_report(root, root / "out", settings(n_steps=8, seeds=2).complete())
    text = (root / "out" / "report.html").read_text()
    assert "<h1>Results at scale smoke, n_steps=8, level=None</h1>" in text


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("returns_iql.csv", ("spin/cheetah-run-b3/medium-v0", "AR"), 284.7),
        ("returns_maze.csv", ("spin/maze-a5/medium-expert-v0", "F"), 98.2),
        ("reprem.csv", ("spin/finger-spin-b3/random-medium-expert-v0", "RePreM"), 706.9),
        ("returns_by_objective.csv", ("spin/cheetah-run-b3/medium-expert-v0", "VAM"), 607.5),
        ("returns_dog_trot_bins.csv", ("spin/dog-trot-b3/medium-expert-v0", "SAINT"), 635.1),
        ("percent_of_fiql_at_10k_steps.csv", ("spin/cheetah-run-b3/medium-v0", "SPIN"), 94.5),
    ],
)
def test_published_tables_are_read(file: str, key: tuple[str, str], value: float) -> None:
    assert read_published(file)[key] == value
