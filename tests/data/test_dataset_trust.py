"""Untrusted datasets: nothing that their files name is run, and no other file is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.wrappers import FlattenObservation
from minari import MinariDataset
from typer.testing import CliRunner

from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer, load_dataset
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.runs.settings import TrainSettings
from spin_d3rlpy.runs.training import run_training

NVEC = [3, 5]
NAME = "others/things-v0"
Make = Callable[..., Any]
MADE: list[Any] = []


def makes(**kwargs: Any) -> Any:
    """A function named in malicious metadata."""
    MADE.append(kwargs)
    return gymnasium.make("CartPole-v1")


class Wraps(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        MADE.append(env)
        super().__init__(env)


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    MADE.clear()


def _spec(entry_point: str = f"{__name__}:makes", **fields: Any) -> EnvSpec:
    return EnvSpec("untrusted/Env-v0", entry_point, kwargs={"text": "x"}, **fields)


def test_a_function_that_metadata_name_is_not_called(
    make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=_spec())
    with pytest.raises(InvalidDatasetError, match=rf"wants '{__name__}:makes' called.*trust"):
        load_dataset(NAME)
    assert MADE == []
    assert as_device_buffer(NAME).transition_count == 15  # the data are data
    report = check_dataset(dataset)
    assert report.problems == []
    assert MADE == []


def test_it_is_called_if_the_author_is_trusted(make_minari: Make, foreign_episodes: Make) -> None:
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=_spec())
    with pytest.warns(UserWarning, match="observations of shape"):  # it is of other data
        load_dataset(NAME, trust=True)
    assert MADE == [{"text": "x"}]


def test_a_registered_name_does_not_cover_another_function(
    make_minari: Make, foreign_episodes: Make
) -> None:
    spec = EnvSpec("CartPole-v1", f"{__name__}:makes")
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.raises(InvalidDatasetError, match="does not have registered"):
        load_dataset(NAME)
    vector = gymnasium.spec("CartPole-v1")
    real = vector.vector_entry_point
    vector = EnvSpec.from_json(vector.to_json())
    assert real != f"{__name__}:makes"
    vector.vector_entry_point = f"{__name__}:makes"
    make_minari(
        MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=vector, name="others/vector-v0"
    )
    with pytest.raises(InvalidDatasetError, match="does not have registered"):
        load_dataset("others/vector-v0")
    assert MADE == []


@pytest.mark.parametrize(
    "entry_point",
    [
        f"{__name__}:Wraps",
        "gymnasium.wrappers.rendering:RecordVideo",
        "gymnasium.wrappers_of_others:FlattenObservation",
        "gymnasium.wrappers.common:deepcopy",
    ],
)
def test_wrappers_that_metadata_name_are_not_made(
    entry_point: str, make_minari: Make, foreign_episodes: Make
) -> None:
    spec = gymnasium.spec("CartPole-v1")
    wrapped = EnvSpec.from_json(spec.to_json())
    wrapped.additional_wrappers = (WrapperSpec("w", entry_point, {}),)
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=wrapped)
    with pytest.raises(InvalidDatasetError, match=rf"wants '{entry_point}' called"):
        load_dataset(NAME)
    assert MADE == []


def test_gymnasiums_own_wrappers_are_made(make_minari: Make, foreign_episodes: Make) -> None:
    spec = FlattenObservation(gymnasium.make("CartPole-v1")).spec
    assert spec is not None
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.warns(UserWarning, match="observations of shape"):  # it is of other data
        _, env = load_dataset(NAME)
    assert isinstance(env, FlattenObservation)


def test_no_module_is_imported_for_an_inner_environment(
    make_minari: Make, foreign_episodes: Make
) -> None:
    spec = EnvSpec.from_json(gymnasium.spec("spin/discretized-v0").to_json())
    spec.kwargs = {"env_id": "this:Env-v0", "bins": 3}
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.raises(InvalidDatasetError, match=r"names 'this:Env-v0' in the.*trust=True"):
        load_dataset(NAME)
    assert "this" not in sys.modules


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_module_is_imported_for_an_environment_within_an_inner_one(
    depth: int,
    make_minari: Make,
    foreign_episodes: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "payload_of_metadata.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    kwargs: dict[str, Any] = {"env_id": "payload_of_metadata:x-v0"}
    for _ in range(depth):
        kwargs = {"env_id": "spin/discretized-v0", "env_kwargs": kwargs}
    spec = EnvSpec.from_json(gymnasium.spec("spin/discretized-v0").to_json())
    spec.kwargs = kwargs
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.raises(InvalidDatasetError, match="names 'payload_of_metadata:x-v0' in the"):
        load_dataset(NAME)
    with pytest.raises(InvalidDatasetError, match="names 'payload_of_metadata:x-v0' in the"):
        run_training(tmp_path / "run", TrainSettings(NAME, n_steps=1), show_progress=False)
    assert "payload_of_metadata" not in sys.modules


def test_no_argument_of_a_wrapper_names_a_module(make_minari: Make, foreign_episodes: Make) -> None:
    spec = EnvSpec.from_json(gymnasium.spec("CartPole-v1").to_json())
    kwargs = {"inner": [{"env_id": "this:Env-v0"}]}
    entry_point = "gymnasium.wrappers.common:TimeLimit"
    spec.additional_wrappers = (WrapperSpec("w", entry_point, kwargs),)
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.raises(InvalidDatasetError, match=r"names 'this:Env-v0' in the"):
        load_dataset(NAME)


def _edit_metadata(dataset: MinariDataset, change: Callable[[Any], object]) -> None:
    path = dataset.storage.data_path / "metadata.json"
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_opening_a_dataset_makes_nothing(
    missing: str, make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=_spec())
    _edit_metadata(dataset, lambda m: m.pop(missing))
    for use in (load_dataset, as_device_buffer, open_local):
        with pytest.raises(InvalidDatasetError, match="has no spaces"):
            use(NAME)
    with pytest.raises(InvalidDatasetError, match="has no spaces"):
        load_dataset(Path(dataset.spec.data_path))
    result = CliRunner().invoke(app, ["data", "check", NAME])
    assert isinstance(result.exception, InvalidDatasetError)
    assert MADE == []
    open_local(NAME, trust=True)
    assert len(MADE) == 1


METADATA: dict[str, Callable[[Any], object]] = {
    "unknown space": lambda m: m.update(action_space='{"type": "eval"}'),
    "space that is no text": lambda m: m.update(action_space=7),
    "space without fields": lambda m: m.update(action_space='{"type": "MultiDiscrete"}'),
    "negative choices": lambda m: m.update(
        action_space='{"type": "MultiDiscrete", "nvec": [-3], "dtype": "int64", "start": [0]}'
    ),
    "object box": lambda m: m.update(
        observation_space='{"type": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1}'
    ),
    "huge box": lambda m: m.update(
        observation_space='{"type": "Box", "shape": [1000000000000], "dtype": "float32",'
        ' "low": 0, "high": 1}'
    ),
    "deep space": lambda m: m.update(
        observation_space='{"type": "Tuple", "subspaces": [' * 5000 + "]}" * 5000
    ),
    "other format": lambda m: m.update(data_format="pickle"),
    "no format": lambda m: m.pop("data_format"),
    "other version": lambda m: m.update(minari_version="99.0"),
    "no version": lambda m: m.pop("minari_version"),
    "no name": lambda m: m.pop("dataset_id"),
    "spec that is no spec": lambda m: m.update(env_spec="[]"),
    "episodes that are no number": lambda m: m.update(total_episodes="many"),
    "more episodes than there are": lambda m: m.update(total_episodes=4),
    "more episodes than memory has room for": lambda m: m.update(total_episodes=10**15),
}


@pytest.mark.parametrize("kind", sorted(METADATA))
def test_damaged_metadata_are_refused(kind: str, make_minari: Make, foreign_episodes: Make) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    _edit_metadata(dataset, METADATA[kind])
    with pytest.raises(InvalidDatasetError, match=r"things-v0"):
        as_device_buffer(NAME)


@pytest.mark.parametrize("content", ["", "{", "[]", "\0", "[" * 100_000])
def test_metadata_that_are_none_are_refused(
    content: str, make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    (dataset.storage.data_path / "metadata.json").write_text(content)
    with pytest.raises(InvalidDatasetError, match="things-v0"):
        as_device_buffer(NAME)


def _replace(file: Any, key: str, **created: Any) -> None:
    del file[key]
    file.create_dataset(key, **created)


def _external_data(file: Any) -> None:
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_external(b"/etc/passwd", 0, 12)
    del file["episode_1/rewards"]
    space = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file["episode_1"].id, b"rewards", h5py.h5t.NATIVE_FLOAT, space, dcpl=created)


def _virtual_data(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), np.float32)
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "rewards", (3,))
    del file["episode_1/rewards"]
    file.create_virtual_dataset("episode_1/rewards", layout)


def _external_link(file: Any) -> None:
    """What it leads to would be good."""
    other = Path(file.filename).with_name("other.hdf5")
    with h5py.File(other, "w") as target:
        file.copy("episode_1", target)
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink(str(other), "/episode_1")


def _soft_link(file: Any) -> None:
    file.move("episode_1/rewards", "rewards")
    file["episode_1/rewards"] = h5py.SoftLink("/rewards")


def _group_for_data(file: Any) -> None:
    del file["episode_1/rewards"]
    file.create_group("episode_1/rewards")


def _set(key: str, value: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[key]
        file[key] = value

    return change


def _steps(value: Any) -> Callable[[Any], None]:
    return lambda file: file["episode_1"].attrs.__setitem__("total_steps", value)


FILES: dict[str, Callable[[Any], object]] = {
    "no episode": lambda f: f.__delitem__("episode_1"),
    "no rewards": lambda f: f.__delitem__("episode_1/rewards"),
    "no length": lambda f: f["episode_1"].attrs.__delitem__("total_steps"),
    "external link": _external_link,
    "soft link": _soft_link,
    "external data": _external_data,
    "virtual data": _virtual_data,
    "group for data": lambda f: (
        f.__delitem__("episode_1/rewards"),
        f.create_group("episode_1/rewards"),
    ),
    "data for group": _set("episode_1", np.zeros(3)),
    "sparse and huge": lambda f: _replace(
        f, "episode_1/observations", shape=(10**12, 2), dtype="f4", chunks=(1000, 2)
    ),
    "wide and huge": lambda f: _replace(
        f, "episode_1/observations", shape=(4, 10**12), dtype="f4", chunks=(4, 1000)
    ),
    "text": lambda f: _replace(f, "episode_1/rewards", data=[b"a", b"b", b"c"]),
    "long text": lambda f: _replace(
        f, "episode_1/rewards", data=["a"] * 3, dtype=h5py.string_dtype()
    ),
    "structured": lambda f: _replace(f, "episode_1/rewards", data=np.zeros(3, [("a", "f4")])),
    "complex": lambda f: _replace(f, "episode_1/rewards", data=np.zeros(3, complex)),
    "length 0": _steps(0),
    "negative length": _steps(-3),
    "other length": _steps(4),
    "huge length": _steps(10**15),
    "length beyond 64 bits": _steps(np.uint64(2**64 - 1)),
    "length as text": _steps("three"),
    "lengths": _steps([3, 3]),
}


@pytest.mark.parametrize("kind", sorted(FILES))
def test_damaged_files_are_refused(kind: str, make_minari: Make, foreign_episodes: Make) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    with h5py.File(dataset.storage.data_path / "main_data.hdf5", "r+") as file:
        FILES[kind](file)
    with pytest.raises(InvalidDatasetError, match=r"episode|damaged|rewards|observations"):
        as_device_buffer(NAME)


def test_the_file_of_the_tests_above_is_good(make_minari: Make, foreign_episodes: Make) -> None:
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    assert as_device_buffer(NAME).transition_count == 15


def test_more_than_the_machine_has_is_refused_before_it_is_taken(
    make_minari: Make, foreign_episodes: Make
) -> None:
    size, length = 10_000, 3
    episodes = foreign_episodes(NVEC)[1:2]
    episodes[0].observations = np.zeros((length + 1, size), np.float32)
    dataset = make_minari(MultiDiscrete(NVEC), episodes, Box(-1, 1, (size,), np.float32))
    with h5py.File(dataset.storage.data_path / "main_data.hdf5", "r+") as file:
        group = file.create_group("episode_1")
        group.attrs["total_steps"] = 10**9
    _edit_metadata(dataset, lambda m: m.update(total_episodes=2))
    with pytest.raises(InvalidDatasetError, match=r"take 40,010,000,200,030 bytes.*max_episodes"):
        as_device_buffer(NAME)
    assert DeviceReplayBuffer.from_minari(open_local(NAME), max_episodes=1).transition_count == 3
