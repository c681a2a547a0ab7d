"""Environments of users, registered with a class: kept by their id, or passed to `load_dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.wrappers import FlattenObservation

from spin_d3rlpy import from_table, load_dataset, save_dataset
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.runs.settings import TrainSettings
from spin_d3rlpy.runs.training import run_training

ID = "own/dials-v0"
NAME = "me/dials-v0"


class Dials(gymnasium.Env[Any, Any]):
    """Two dials of `choices` positions."""

    def __init__(self, choices: int = 3, size: int = 2, other: Any = None) -> None:
        self.observation_space = Box(0.0, 1.0, (size,), np.float32)
        self.action_space = MultiDiscrete([choices, 2])


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register(ID, entry_point=Dials, max_episode_steps=7)  # type: ignore[arg-type]
    yield
    gymnasium.registry.pop(ID, None)


def log(choices: int = 3) -> DeviceReplayBuffer:
    rows = np.arange(12)
    table = {"x": rows, "a": rows % choices, "b": rows % 2, "r": rows, "e": rows // 6}
    columns: dict[str, Any] = {"observations": ["x", "x"], "actions": ["a", "b"], "reward": "r"}
    return from_table(table, episode="e", nvec=[choices, 2], **columns)


def test_an_environment_that_is_registered_with_a_class_is_kept_by_its_id() -> None:
    save_dataset(log(4), NAME, env=gymnasium.make(ID, choices=4, max_episode_steps=9))
    buffer, env = load_dataset(NAME)
    assert isinstance(env.unwrapped, Dials)
    assert env.action_space == MultiDiscrete([4, 2])
    assert env.spec is not None
    assert env.spec.max_episode_steps == 9
    assert buffer.nvec == [4, 2]


def test_gymnasiums_wrappers_are_kept_with_it() -> None:
    save_dataset(log(), NAME, env=FlattenObservation(gymnasium.make(ID)))
    _, env = load_dataset(NAME)
    assert isinstance(env, FlattenObservation)
    assert isinstance(env.unwrapped, Dials)


def test_runs_elsewhere_train_on_the_data_alone(tmp_path: Path) -> None:
    save_dataset(log(), NAME, env=gymnasium.make(ID))
    gymnasium.registry.pop(ID)
    settings = TrainSettings(
        dataset=NAME, algorithm="FactoredIQL", recipe="smoke", n_steps=2, n_steps_per_epoch=2
    )
    with pytest.warns(UserWarning, match=rf"'{ID}' of {NAME} is not registered"):
        result = run_training(tmp_path / "run", settings, show_progress=False)
    assert "action_match" in result
    assert "return" not in result


@pytest.mark.parametrize("trust", [False, True])
def test_where_the_id_is_not_registered_the_environment_can_be_passed(trust: bool) -> None:
    save_dataset(log(), NAME, env=gymnasium.make(ID))
    gymnasium.registry.pop(ID)
    with pytest.raises(InvalidDatasetError, match=rf"'{ID}', which .* registers it, .* env="):
        load_dataset(NAME, trust=trust)
    own = Dials()
    buffer, env = load_dataset(NAME, env=own)
    assert env is own
    assert buffer.transition_count == 12


def test_its_arguments_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    save_dataset(log(), NAME, env=gymnasium.make(ID, other=[{"id": "payload:x-v0"}]))
    with pytest.raises(InvalidDatasetError, match=r"names 'payload:x-v0'.*trust=True"):
        load_dataset(NAME)
    assert isinstance(load_dataset(NAME, trust=True)[1].unwrapped, Dials)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Dials, "it was not made by gymnasium.make"),
        (lambda: gymnasium.make(ID, other=np.zeros(2)), "its specification cannot be stored"),
        (
            lambda: gymnasium.make(EnvSpec("other/dials-v0", Dials)),  # type: ignore[arg-type]
            "its specification cannot be stored",
        ),
    ],
)
def test_an_environment_that_cannot_be_kept_is_one_warning(make: Any, reason: str) -> None:
    with pytest.warns(UserWarning, match=rf"will not name .* {reason}.*load_dataset") as caught:
        save_dataset(log(), NAME, env=make())
    assert len(caught) == 1
    assert open_local(NAME).env_spec is None
    with pytest.raises(InvalidDatasetError, match=r"does not name its environment.* env="):
        load_dataset(NAME)
    _, env = load_dataset(NAME, env=ID)
    assert isinstance(env.unwrapped, Dials)


def test_an_environment_that_does_not_fit_is_refused() -> None:
    save_dataset(log(), NAME)
    assert minari.load_dataset(NAME).env_spec is None
    with pytest.raises(NvecMismatchError, match=r"environment has nvec=\[5, 2\].*\[3, 2\]"):
        load_dataset(NAME, env=Dials(choices=5))
    with pytest.raises(InvalidDatasetError, match=r"observations of shape \(2,\).*got Box"):
        load_dataset(NAME, env=Dials(size=3))
