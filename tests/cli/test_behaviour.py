"""`spin-d3rlpy behaviour train`: from networks of another training, if the recipe says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spin_d3rlpy.behavior import ppo, recipes, selection, trainer
from spin_d3rlpy.behavior.recipes import PPORecipe
from spin_d3rlpy.cli import app


def test_the_initial_training_comes_first_and_a_snapshot_is_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PPORecipe(
        task="cheetah-run",
        number=4,  # no policy of it is shipped
        level="medium",
        target=3.0,
        env_steps=320,
        evaluation_interval=160,
        fall_reward=-1.0,
        width=8,
    )
    second = dataclasses.replace(first, number=5, initial=first.name)
    monkeypatch.setattr(recipes, "RECIPES", {r.name: r for r in (first, second)})
    monkeypatch.setattr(ppo, "ROLLOUT_STEPS", 5)
    monkeypatch.setattr(trainer, "EVALUATION_EPISODES", 1)
    monkeypatch.setattr(selection, "RECORD_EPISODES", 1)
    arguments = ["cheetah-run-b5", "--level", "medium", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["behaviour", "train", *arguments])
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / first.name / "snapshots").iterdir()} == {
        "160.npz",
        "320.npz",
    }
    record = json.loads((tmp_path / second.name / f"{second.name}.json").read_text())
    assert record["bins"] == 5
    assert record["command"] == "spin-d3rlpy behaviour train cheetah-run-b5 --level medium"
    selected = tmp_path / first.name / f"{first.name}.npz"
    before = selected.stat().st_mtime_ns
    again = CliRunner().invoke(app, ["behaviour", "train", *arguments])
    assert again.exit_code == 0, again.output
    assert selected.stat().st_mtime_ns == before
