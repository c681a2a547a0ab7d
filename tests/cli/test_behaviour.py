"""`spin-d3rlpy behaviour train`: from networks of another training, if the recipe says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spin_d3rlpy.behavior import recipes, train
from spin_d3rlpy.behavior.recipes import RECIPES
from spin_d3rlpy.cli import app


def test_the_initial_training_comes_first_and_a_snapshot_is_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPES["cheetah-run-b3-medium"]
    first = dataclasses.replace(  # no policy of it is shipped
        recipe, number=4, width=8, env_steps=800, evaluation_interval=400
    )
    second = dataclasses.replace(first, number=5, initial=first.name)
    monkeypatch.setattr(recipes, "RECIPES", {r.name: r for r in (first, second)})
    for constant, value in {
        "WARMUP_STEPS": 400,
        "EVALUATION_EPISODES": 1,
        "RECORD_EPISODES": 1,
    }.items():
        monkeypatch.setattr(train, constant, value)
    arguments = ["cheetah-run-b5", "--level", "medium", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["behaviour", "train", *arguments])
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / first.name / "snapshots").iterdir()} == {
        "400.npz",
        "800.npz",
    }
    record = json.loads((tmp_path / second.name / f"{second.name}.json").read_text())
    assert record["bins"] == 5
    assert record["command"] == "spin-d3rlpy behaviour train cheetah-run-b5 --level medium"
    selected = tmp_path / first.name / f"{first.name}.npz"
    before = selected.stat().st_mtime_ns
    again = CliRunner().invoke(app, ["behaviour", "train", *arguments])
    assert again.exit_code == 0, again.output
    assert selected.stat().st_mtime_ns == before
