"""`spin-d3rlpy behaviour train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spin_d3rlpy.behavior import ppo, recipes, selection, trainer
from spin_d3rlpy.behavior.recipes import PPORecipe
from spin_d3rlpy.cli import app


def test_a_policy_is_trained_and_a_snapshot_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = PPORecipe(
        task="cheetah-run",
        number=5,
        level="medium",
        target=3.0,
        env_steps=320,
        evaluation_interval=160,
        fall_reward=-1.0,
        learned_bins=3,
        width=8,
    )
    monkeypatch.setattr(recipes, "RECIPES", {recipe.name: recipe})
    monkeypatch.setattr(ppo, "ROLLOUT_STEPS", 5)
    monkeypatch.setattr(trainer, "EVALUATION_EPISODES", 1)
    monkeypatch.setattr(selection, "RECORD_EPISODES", 1)
    arguments = ["cheetah-run-b5", "--level", "medium", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["behaviour", "train", *arguments])
    assert result.exit_code == 0, result.output
    folder = tmp_path / recipe.name
    assert {p.name for p in (folder / "snapshots").iterdir()} == {"160.npz", "320.npz"}
    record = json.loads((folder / f"{recipe.name}.json").read_text())
    assert record["bins"] == 5
    assert record["command"] == "spin-d3rlpy behaviour train cheetah-run-b5 --level medium"
