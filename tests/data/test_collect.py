"""Datasets of episodes that a function plays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from spin_d3rlpy import FactoredBC, collect, load_dataset, save_dataset
from spin_d3rlpy.errors import InvalidActionSpaceError


def test_episodes_of_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("spin/dispatch-v0", couriers=3)
    seen = []

    def first(observation: np.ndarray) -> np.ndarray:
        seen.append(observation)
        return np.array([0, 1, 3])

    buffer = collect(env, first, episodes=2, seed=5, progress=False)
    assert (buffer.size(), buffer.transition_count, buffer.nvec) == (2, 100, [4, 4, 4])
    np.testing.assert_array_equal(buffer.observations[:50], seen[:50])
    np.testing.assert_array_equal(buffer.observations[0], env.reset(seed=5)[0])
    assert buffer.actions.unique(dim=0).tolist() == [[0, 1, 3]]
    assert not buffer.terminals.any()
    assert buffer.layout == env.unwrapped.layout  # type: ignore[attr-defined]
    save_dataset(buffer, "user/first-v0", env=env)
    loaded, _ = load_dataset("user/first-v0")
    assert loaded.layout == buffer.layout
    assert (loaded.rewards == buffer.rewards).all()
    algo = FactoredBC()
    algo.build_with_dataset(loaded)
    assert algo.config.layout == buffer.layout


def test_a_layout_in_metadata_must_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from minari.dataset.minari_storage import MinariStorage

    from spin_d3rlpy.errors import InvalidDatasetError

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("spin/dispatch-v0", couriers=3)
    buffer = collect(env, lambda _: np.array([0, 1, 2]), 1, progress=False)
    save_dataset(buffer, "user/bad-v0", env=env)
    storage = MinariStorage.read(tmp_path / "user" / "bad-v0" / "data")
    assert buffer.layout is not None
    layout = buffer.layout.to_dict() | {"slot_columns": [[99, 1], [1, 2], [2, 3]]}
    storage.update_metadata({"action_layout": layout})
    with pytest.raises(InvalidDatasetError, match=r"layout of actions.*column 99"):
        load_dataset("user/bad-v0")


def test_what_cannot_be_collected() -> None:
    env = gymnasium.make("spin/dispatch-v0", couriers=3)
    with pytest.raises(ValueError, match="episodes of at least 1"):
        collect(env, lambda _: np.zeros(3, int), 0)
    with pytest.raises(InvalidActionSpaceError):
        collect(gymnasium.make("Pendulum-v1"), lambda _: np.zeros(1), 1, progress=False)
