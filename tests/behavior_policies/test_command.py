"""The command that trains behavior policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.behavior_policies import ppo, recipes, selection, trainer
from examples.behavior_policies.__main__ import app
from examples.behavior_policies.recipes import PPORecipe

pytestmark = pytest.mark.usefixtures("short_episodes")


@pytest.mark.slow
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
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 0, result.output
    folder = tmp_path / recipe.name
    assert {p.name for p in (folder / "snapshots").iterdir()} == {"160.npz", "320.npz"}
    record = json.loads((folder / f"{recipe.name}.json").read_text())
    assert record["bins"] == 5
    assert (
        record["command"]
        == "python -m examples.behavior_policies train cheetah-run-b5 --level medium"
    )
