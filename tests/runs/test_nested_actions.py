"""A run on data of an environment whose action is a Dict: trained, played and reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from spin_d3rlpy import collect, save_dataset
from spin_d3rlpy.runs.play import play_episodes
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.report import ReportSettings, measure_run
from spin_d3rlpy.runs.report_page import write_page
from spin_d3rlpy.runs.settings import TrainSettings
from spin_d3rlpy.runs.training import run_training
from tests.envs.pad import ID, Pad

NAME = "user/pad-v0"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    gymnasium.register(ID, entry_point="tests.envs.pad:Pad")
    yield
    gymnasium.registry.pop(ID)


def test_a_run_is_trained_played_and_reported(tmp_path: Path) -> None:
    env = gymnasium.make(ID)
    env.action_space.seed(0)
    data = collect(env, lambda _: env.action_space.sample(), 20, progress=False, bins=3)
    save_dataset(data, NAME, env=env)
    settings = TrainSettings(
        dataset=NAME, algorithm="FactoredIQL", recipe="smoke", n_steps=2, n_steps_per_epoch=2
    )
    result = run_training(tmp_path / "run", settings, show_progress=False)
    assert isinstance(env.unwrapped, Pad)
    opened = open_policy(str(tmp_path / "run"))
    assert play_episodes(opened, episodes=2)["episodes"] == 2
    assert "return" in result
    quick = ReportSettings(fqe_steps=2, model_updates=4, n_examples=2)
    report = measure_run(tmp_path / "run", quick)
    assert report.flat_actions == data.flat_actions
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "stick/1" in page
    assert "slot 1" not in page
