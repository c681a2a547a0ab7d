"""Trainings say when their policies return less than the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import NoopAdapterFactory
from structlog.testing import capture_logs

import spin_envs  # noqa: F401 - registers the environments
from spin_d3rlpy import FactoredBC, LockstepEvaluator, collect
from spin_d3rlpy.data import save_dataset
from spin_d3rlpy.evaluation.against_data import compare_with_data
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.runs.training import run_training


def different_items(_observation: Any) -> Any:
    return np.arange(5)


def one_item(_observation: Any) -> Any:
    return np.zeros(5, dtype=np.int64)


def pages(choose: Any) -> ReplayBufferBase:
    env = gymnasium.make("spin/slate-v0", places=5, max_episode_steps=10)
    return collect(env, choose, episodes=30)


@pytest.fixture(scope="module")
def good() -> ReplayBufferBase:
    return pages(different_items)


@pytest.fixture(scope="module")
def bad() -> ReplayBufferBase:
    return pages(one_item)


def test_below_is_two_standard_errors_of_the_difference(good: ReplayBufferBase) -> None:
    returns = np.array([episode.rewards.sum() for episode in good.episodes])
    error = np.hypot(0.5, returns.std() / len(returns) ** 0.5)
    for distance, is_below in ((1.9, False), (2.1, True)):
        mean = float(returns.mean() - distance * error)
        assert compare_with_data(mean, 2.0, 16, good).is_below == is_below
    assert not compare_with_data(-1000.0, 0.0, 1, good).is_below  # one episode has no error


def test_fit_warns_once_at_its_end(good: ReplayBufferBase, bad: ReplayBufferBase) -> None:
    env = gymnasium.make("spin/slate-v0", places=5, max_episode_steps=10)
    algo = FactoredBC(recipe="smoke")
    for dataset, warnings in ((bad, 0), (good, 1)):
        with capture_logs() as logs:
            algo.fit(  # learns what pays least, then hardly anything else
                dataset,
                n_steps=200 if dataset is bad else 2,
                n_steps_per_epoch=100 if dataset is bad else 1,
                evaluators={"return": LockstepEvaluator(env, n_trials=20)},
                logger_adapter=NoopAdapterFactory(),
                show_progress=False,
            )
        said = [log["event"] for log in logs if "of its data" in log["event"]]
        assert len(said) == warnings


def test_a_run_says_it_in_its_result(
    good: ReplayBufferBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("spin/slate-v0", places=5, max_episode_steps=10)
    save_dataset(good, "test/good-pages-v0", env)
    settings = train_settings(
        {
            "dataset": "test/good-pages-v0",
            "algorithm": "FactoredBC",
            "recipe": "smoke",
            "n_steps": 1,
            "fields": {"batch_size": 4},
        },
        "this test",
    )
    run_training(tmp_path / "run", settings, show_progress=False)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["below_data"]
    assert result["data_return"] > result["return"]
    assert "below the" in result["warning"]
