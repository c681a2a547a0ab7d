"""Policies without an environment are compared with a part of a long log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spin_d3rlpy import from_table, save_dataset
from spin_d3rlpy.evaluation.metrics import MultiDiscreteActionMatchEvaluator
from spin_d3rlpy.runs import training
from spin_d3rlpy.runs.settings import train_settings


def test_of_a_long_log_some_episodes_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    n, length = 40, 10
    table = {
        "patient": np.repeat(np.arange(n), length),
        "day": np.tile(np.arange(length), n),
        "pulse": rng.normal(size=n * length),
        "a": rng.integers(3, size=n * length),
        "b": rng.integers(2, size=n * length),
        "paid": rng.normal(size=n * length),
    }
    log = from_table(
        table,
        observations=["pulse"],
        actions=["a", "b"],
        reward="paid",
        episode="patient",
        time="day",
        nvec=[3, 2],
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    save_dataset(log, "ward/log-v0")
    compared = []

    def count(self: MultiDiscreteActionMatchEvaluator, *_: object) -> float:
        assert self._episodes is not None
        compared.append(sum(len(episode.actions) for episode in self._episodes))
        return 0.0

    monkeypatch.setattr(MultiDiscreteActionMatchEvaluator, "__call__", count)
    monkeypatch.setattr(training, "MATCHED_STEPS", 100)
    values = {
        "algorithm": "FactoredBC",
        "dataset": "ward/log-v0",
        "n_steps": 2,
        "n_steps_per_epoch": 2,
        "fields": {"batch_size": 8},
    }
    settings = train_settings(values, "run")
    training.run_training(tmp_path / "run", settings, show_progress=False)
    assert compared == [100]
