"""Environments whose observations are not made as the data's are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, TransformObservation

from spin_d3rlpy import DeviceReplayBuffer, collect, load_dataset, save_dataset
from spin_d3rlpy.errors import InvalidDatasetError
from tests.data.sensors import CENTERS, Parts

RAW = "test/sensors-v0"
NAME = "me/sensors-v0"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DeviceReplayBuffer:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make(RAW)
    buffer = collect(env, lambda _: env.action_space.sample(), 40, progress=False)
    save_dataset(buffer, NAME, env=env)
    return buffer


def transformed(change: Any) -> Any:
    return TransformObservation(gymnasium.make(RAW), change, Box(-np.inf, np.inf, (4,), np.float32))


def test_an_environment_like_the_data_is_loaded_without_a_word(data: DeviceReplayBuffer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for env in (None, RAW, gymnasium.make(RAW)):
            load_dataset(NAME, env=env)


@pytest.mark.parametrize(
    ("change", "features"),
    [
        (lambda x: x / 255.0, "feature 0 .*; feature 1 .*; feature 2 .*; feature 3 "),
        (lambda x: x - CENTERS, "start: feature 1 .*; feature 2 .*; feature 3 "),
        (lambda x: x[[1, 0, 2, 3]], "start: feature 0 .*; feature 1 "),
        (lambda x: x * np.array([10, 1, 1, 1]), r"start: feature 0 is [^;]* data [^;]*\. Exp"),
        (lambda x: x + np.array([0, 0, 0, 1]), "start: feature 3 is 4, in the data 3"),
    ],
    ids=["divided", "centered", "reordered", "one scaled", "a constant"],
)
def test_what_differs_is_named(change: Any, features: str, data: DeviceReplayBuffer) -> None:
    with pytest.warns(UserWarning, match=f"do not look like those of dataset {NAME}.*{features}"):
        load_dataset(NAME, env=transformed(change))


def test_running_means_are_found_out_and_left_alone(data: DeviceReplayBuffer) -> None:
    env: Any = NormalizeObservation(gymnasium.make(RAW))
    env.obs_rms.mean, env.obs_rms.count = CENTERS.copy(), 1e6
    with pytest.warns(UserWarning, match="what wrappers have learned"):
        load_dataset(NAME, env=env)
    assert env.obs_rms.count == 1e6
    np.testing.assert_array_equal(env.obs_rms.mean, CENTERS)


def test_random_numbers_of_the_environment_are_left_alone(data: DeviceReplayBuffer) -> None:
    seen = []
    for load in (False, True):
        env = gymnasium.make(RAW)
        env.reset(seed=4)
        if load:
            load_dataset(NAME, env=env)
        seen.append(env.reset()[0].tolist())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("returned", [np.zeros(3, np.float32), np.zeros((1, 4), np.float32)])
def test_observations_that_are_not_in_their_space_are_refused(
    returned: Any, data: DeviceReplayBuffer
) -> None:
    env = transformed(lambda x: returned)
    with pytest.raises(InvalidDatasetError, match=r"observations of shape \(4,\)"):
        load_dataset(NAME, env=env)


def test_masks_that_the_environment_lacks_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make(RAW, masked=True)
    buffer = collect(env, lambda _: env.action_space.sample(), 4, progress=False)
    save_dataset(buffer, NAME, env=env)
    load_dataset(NAME)
    with pytest.warns(UserWarning, match="have masks, those of the environment have none"):
        load_dataset(NAME, env=RAW)


def save_parts(keys: str) -> None:
    """Writes a data set of observations in parts, as Minari's users do."""
    env: Any = Parts(keys)
    episodes = []
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        seen = [observation, *(env.step(None)[0] for _ in range(3))]
        episodes.append(
            minari.data_collector.EpisodeBuffer(
                observations={key: np.stack([x[key] for x in seen]) for key in keys},
                actions=np.zeros((3, 2), np.int64),
                rewards=np.zeros(3),
                terminations=np.zeros(3, bool),
                truncations=np.array([False, False, True]),
                infos={},
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the description lacks
        minari.create_dataset_from_buffers(
            NAME,
            episodes,
            env=gymnasium.make("test/parts-v0", keys=keys),
            observation_space=env.observation_space,
            action_space=env.action_space,
        )


@pytest.mark.parametrize(("stored", "made"), [("ab", "ba"), ("ba", "ab"), ("ba", "ba")])
def test_parts_have_the_order_of_the_data(
    stored: str, made: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_parts(stored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer, env = load_dataset(NAME, env=gymnasium.make("test/parts-v0", keys=made))
        load_dataset(NAME)
    np.testing.assert_allclose(buffer.observations[0], env.reset(seed=0)[0])


def test_other_parts_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_parts("ab")
    with pytest.raises(InvalidDatasetError, match="dataset's parts a, b, got c, b"):
        load_dataset(NAME, env=gymnasium.make("test/parts-v0", keys="cb"))
