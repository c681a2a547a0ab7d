"""Finished jobs of other values of their recipe are found and named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from examples.paper import tables
from examples.paper.catalog import PaperSettings
from examples.paper.job import RESULT, RUN, Job
from examples.paper.report import write_report
from examples.paper.settings import outdated, settings_of
from spin_d3rlpy.files.results import write_json
from spin_d3rlpy.files.yaml_settings import format_settings
from spin_d3rlpy.runs.settings import TrainSettings


def finish(root: Path, job: Job, settings: TrainSettings) -> None:
    folder = root / job.name
    (folder / RUN).mkdir(parents=True)
    (folder / RUN / "config.yaml").write_text(format_settings(settings))
    write_json(folder / RESULT, {})


def test_only_jobs_whose_recipe_gives_other_values_now(tmp_path: Path) -> None:
    bench = PaperSettings(["improvement"], "smoke", seeds=1, methods=["joint with search"])
    first, second, third, *_ = bench.complete().jobs()
    finish(tmp_path, first, settings_of(first, None))
    now = settings_of(second, None)
    changed = now.fields | {"support": 0.5, "compile_graph": False}
    finish(tmp_path, second, dataclasses.replace(now, fields=changed))
    then = settings_of(third, None)  # a version before one of the fields
    fewer = {name: value for name, value in then.fields.items() if name != "stricter_flexibilities"}
    finish(tmp_path, third, dataclasses.replace(then, fields=fewer))
    found = outdated(tmp_path, bench.complete().jobs())
    assert found == {second.name: ["support"], third.name: ["stricter_flexibilities"]}


def test_features_that_a_version_did_not_use_matter_where_there_are_some(tmp_path: Path) -> None:
    bench = PaperSettings(["improvement"], "smoke", seeds=1, methods=["AR"]).complete()
    jobs = {job.dataset.split("/")[1].partition("-")[0]: job for job in bench.jobs()}
    for job in (jobs["dispatch"], jobs["finger"]):
        settings = settings_of(job, None)
        fewer = {name: value for name, value in settings.fields.items() if name != "entities"}
        finish(tmp_path, job, dataclasses.replace(settings, fields=fewer))
    assert outdated(tmp_path, bench.jobs()) == {jobs["dispatch"].name: ["entities"]}


@pytest.mark.slow
def test_a_report_warns_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "read_cells", lambda *_: [])
    bench = PaperSettings(["improvement"], "smoke", seeds=1, methods=["joint with search"])
    bench = bench.complete()
    job = bench.jobs()[0]
    settings = settings_of(job, None)
    finish(tmp_path, job, dataclasses.replace(settings, fields=settings.fields | {"support": 0.5}))
    write_report(tmp_path, tmp_path / "out", bench)
    text = (tmp_path / "out/report.html").read_text()
    assert f"1 runs were made by other values of their recipe (support): {job.name}." in text
