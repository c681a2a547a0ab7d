"""The experiment on tasks where coordination decides, at the size that shows that it runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from examples.paper import grid
from examples.paper.__main__ import app
from examples.paper.coordination import measure_coordination
from tests.paper.test_experiments import InProcess


class Fixed:
    """The same action everywhere if greedy, couriers with orders of their own if sampled."""

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.zeros((len(x), 3), dtype=int)

    def sample_action(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.tile(np.arange(3), (len(x), 1))


def test_collisions_are_counted_by_action() -> None:
    env = gymnasium.make("spin/dispatch-v0", couriers=3)
    found = measure_coordination(Fixed(), env, 2, 0)
    assert found["greedy_collisions"] == 1.0
    assert found["sampled_collisions"] == 0.0
    assert 0 < found["milliseconds"] < 100
    assert "ruled_return" not in found


@pytest.mark.slow
def test_the_experiment_reports_collisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setattr(grid, "LocalEngine", lambda *_: InProcess())
    common = ["coordination", "--preset", "smoke", "--task", "slate-n5/"]
    folder = ["--folder", str(tmp_path / "jobs")]
    result = CliRunner().invoke(app, ["run", *common, "--method", "joint", *folder])
    assert result.exit_code == 0, result.output
    report = ["report", *common, *folder, "--out", str(tmp_path / "report")]
    assert CliRunner().invoke(app, report).exit_code == 0
    with (tmp_path / "report" / "coordination_collisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = {"joint, best of 32", "joint, best of 32 by a joint critic"}
    assert {row["method"] for row in rows} == names
    for row in rows:
        assert float(row["ruled_collisions"]) == 0.0 <= float(row["greedy_collisions"])
        assert float(row["milliseconds"]) > 0
