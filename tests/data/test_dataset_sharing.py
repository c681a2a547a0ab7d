"""Pushing and pulling datasets, against a folder that plays the Hugging Face hub."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import minari
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
from minari import MinariDataset
from minari.storage.remotes import huggingface
from typer.testing import CliRunner

from spin_d3rlpy.cli import app
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.minari.remote import dataset_card, pull_dataset, push_dataset
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError, RemoteError
from spin_envs import MissingDependencyError

NAME = "spin/cheetah-run-b3/random-medium-expert-5k-v0"
Make = Callable[..., Any]


def _as_the_hub_takes_it(method: Any) -> Any:
    """Refuses arguments that the real client's method of this name does not have."""
    real = inspect.signature(getattr(huggingface_hub.HfApi, method.__name__))

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        real.bind(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return checked


class FakeApi:
    """What Minari and this package use of `huggingface_hub.HfApi`, over folders."""

    root: Path
    cache: Path

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def _write(self) -> None:
        if self._token != "hf_writes":
            response: Any = SimpleNamespace(headers={}, request=None)
            raise HfHubHTTPError("403 Forbidden", response=response)

    def _repository(self, repo_id: str, repo_type: str) -> Path:
        assert repo_type == "dataset"
        return self.root / repo_id

    @_as_the_hub_takes_it
    def create_repo(self, repo_id: str, repo_type: str, exist_ok: bool) -> None:
        self._write()
        self._repository(repo_id, repo_type).mkdir(parents=True, exist_ok=exist_ok)

    @_as_the_hub_takes_it
    def upload_folder(
        self, repo_id: str, folder_path: Path, path_in_repo: str, repo_type: str
    ) -> None:
        self._write()
        target = self._repository(repo_id, repo_type) / path_in_repo
        shutil.copytree(folder_path, target, dirs_exist_ok=True)

    @_as_the_hub_takes_it
    def upload_file(
        self, path_or_fileobj: Any, path_in_repo: str, repo_id: str, repo_type: str
    ) -> None:
        self._write()
        target = self._repository(repo_id, repo_type) / path_in_repo
        target.parent.mkdir(parents=True, exist_ok=True)
        is_bytes = isinstance(path_or_fileobj, bytes)
        target.write_bytes(path_or_fileobj if is_bytes else Path(path_or_fileobj).read_bytes())

    @_as_the_hub_takes_it
    def file_exists(self, repo_id: str, filename: str, repo_type: str) -> bool:
        return (self._repository(repo_id, repo_type) / filename).is_file()

    @_as_the_hub_takes_it
    def list_datasets(self, author: str, dataset_name: str | None = None) -> list[Any]:
        repositories = sorted((self.root / author).glob(dataset_name or "*"))
        return [SimpleNamespace(id=f"{author}/{p.name}") for p in repositories]

    @_as_the_hub_takes_it
    def hf_hub_download(
        self,
        repo_id: str,
        filename: str,
        repo_type: str,
        local_dir: Path | None = None,
        force_download: bool = False,
    ) -> str:
        source = self._repository(repo_id, repo_type) / filename
        if not source.is_file():
            raise EntryNotFoundError(filename)
        target = Path(local_dir or self.cache / repo_id) / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        return str(target)

    @_as_the_hub_takes_it
    def snapshot_download(
        self, repo_id: str, allow_patterns: str, repo_type: str, local_dir: Path
    ) -> None:
        repository = self._repository(repo_id, repo_type)
        for path in repository.rglob("*"):
            inside = path.relative_to(repository).as_posix()
            if path.is_file() and fnmatch(inside, allow_patterns):
                self.hf_hub_download(repo_id, inside, repo_type=repo_type, local_dir=local_dir)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's folder; pushing goes to the organization `us`."""
    monkeypatch.setattr(FakeApi, "root", tmp_path / "hub", raising=False)
    monkeypatch.setattr(FakeApi, "cache", tmp_path / "cache", raising=False)
    monkeypatch.setattr(huggingface, "HfApi", FakeApi)
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setenv("MINARI_REMOTE", "hf://us")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_writes")
    return tmp_path / "hub"


@pytest.fixture
def ours(built_folder: Path, datasets_folder: Path) -> MinariDataset:
    """The built dataset, in a folder that the test may write to."""
    shutil.copytree(built_folder, datasets_folder, dirs_exist_ok=True)
    return open_local(NAME)


def _forget(datasets_folder: Path) -> None:
    shutil.rmtree(datasets_folder)


def test_what_is_pushed_comes_back_the_same(
    hub: Path, ours: MinariDataset, datasets_folder: Path
) -> None:
    expected, _ = load_dataset(ours)
    assert push_dataset(ours) == f"hf://us/{NAME}"
    _forget(datasets_folder)
    assert pull_dataset(NAME) is True
    assert check_dataset(open_local(NAME), replay_episodes=1).problems == []
    buffer, _ = load_dataset(NAME)
    assert np.array_equal(buffer.observations, expected.observations)
    assert np.array_equal(buffer.actions, expected.actions)
    assert pull_dataset(NAME) is False
    left = sorted(p.name for p in (datasets_folder / NAME).iterdir())
    assert left == ["data"]


def test_minaris_own_download_finds_what_was_pushed(
    hub: Path, ours: MinariDataset, datasets_folder: Path
) -> None:
    push_dataset(ours)
    _forget(datasets_folder)
    assert minari.load_dataset(NAME, download=True).total_steps == 5000


def test_loading_by_name_uses_what_was_pushed(
    hub: Path, ours: MinariDataset, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_dataset(ours)
    _forget(datasets_folder)
    monkeypatch.setattr("spin_d3rlpy.data.loader.build_dataset", None)
    assert load_dataset(NAME)[0].transition_count == 5000


def test_a_second_dataset_joins_the_first(
    hub: Path, ours: MinariDataset, make_minari: Make, foreign_episodes: Make
) -> None:
    push_dataset(ours)
    other = "spin/cheetah-run-b3/mine-v0"
    make_minari(MultiDiscrete([3, 5]), foreign_episodes([3, 5]), name=other)
    push_dataset(open_local(other), license="cc0-1.0")
    assert set(minari.list_remote_datasets(prefix="spin/cheetah-run-b3")) == {NAME, other}
    assert "license: mit" in (hub / "us" / "spin" / "README.md").read_text()
    card = (hub / "us" / other / "README.md").read_text()
    assert "license: cc0-1.0" in card


def test_the_card_has_scores_composition_versions_and_license(ours: MinariDataset) -> None:
    card = dataset_card(ours, "mit", check_dataset(ours, 0).summary())
    metadata = ours.storage.metadata
    assert card.startswith("---\nlicense: mit\ntags:\n- reinforcement-learning\n")
    for part in metadata["composition"]:
        assert f"  {part['policy']}: return {part['returns']['mean']:.2f} +- " in card
    assert f"  all: return {metadata['returns']['mean']:.2f} +- " in card
    assert "5.39 is 0 (random), 664.57 is 100 (expert)" in card
    assert f"mujoco {metadata['provenance']['versions']['mujoco']}" in card
    assert metadata["checksum"] in card
    assert f'load_dataset("{NAME}")' in card


def test_a_name_that_is_taken_is_refused_and_left_alone(hub: Path, ours: MinariDataset) -> None:
    push_dataset(ours)
    before = {p: p.read_bytes() for p in hub.rglob("*") if p.is_file()}
    with pytest.raises(RemoteError, match=f"already has a dataset '{NAME}'"):
        push_dataset(ours)
    assert before == {p: p.read_bytes() for p in hub.rglob("*") if p.is_file()}


@pytest.mark.parametrize("remote", [None, "", "us", "hf://", "hf://us/spin", "gcp://us"])
def test_pushing_needs_an_organization(
    remote: str | None, hub: Path, ours: MinariDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote is None:
        monkeypatch.delenv("MINARI_REMOTE")
    else:
        monkeypatch.setenv("MINARI_REMOTE", remote)
    with pytest.raises(RemoteError, match="hf://<your user or organization>"):
        push_dataset(ours)


def test_pushing_needs_a_token(
    hub: Path, ours: MinariDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(RemoteError, match="HF_TOKEN"):
        push_dataset(ours)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_reads")
    with pytest.raises(RemoteError, match=r"403 Forbidden.*token.s permissions"):
        push_dataset(ours)
    assert not hub.exists()


def test_sharing_needs_the_extra(
    ours: MinariDataset, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_REMOTE", "hf://us")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "minari.storage.remotes.huggingface")
    with pytest.raises(MissingDependencyError, match=r"pip install 'spin-d3rlpy\[hf\]'"):
        push_dataset(ours)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spin-d3rlpy\[hf\]'"):
        pull_dataset("spin/maze-a3/medium-v0")


def test_data_of_others_needs_a_license(
    hub: Path, make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete([3, 5]), foreign_episodes([3, 5]))
    with pytest.raises(ValueError, match="Expected a license"):
        push_dataset(dataset)


def test_a_damaged_dataset_is_not_pushed(hub: Path, ours: MinariDataset) -> None:
    ours.storage.update_metadata({"checksum": "sha256:0"})
    with pytest.raises(InvalidDatasetError, match="checksum"):
        push_dataset(ours)
    assert not hub.exists()


def test_a_name_that_the_remote_does_not_have_is_refused(
    hub: Path, ours: MinariDataset, datasets_folder: Path
) -> None:
    push_dataset(ours)
    with pytest.raises(DatasetNotFoundError, match=rf"medium-9k-v0'.*it has {NAME}"):
        pull_dataset("spin/cheetah-run-b3/medium-9k-v0")
    with pytest.raises(DatasetNotFoundError, match="has none"):
        pull_dataset("spin/maze-a3/medium-v0")
    assert not (datasets_folder / "spin" / "maze-a3" / "medium-v0").exists()


@pytest.mark.parametrize("name", ["../secret-v0", "/etc/passwd-v0", "spin/../../x-v0", "spin/x"])
def test_a_name_cannot_lead_out_of_the_folder(hub: Path, name: str) -> None:
    for command in (pull_dataset, load_dataset, open_local):
        with pytest.raises(DatasetNotFoundError):
            command(name)


def _flip(path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        file["episode_2/rewards"][7] += 1.0


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_what_comes_damaged_is_refused_and_not_kept(
    damage: str, hub: Path, ours: MinariDataset, datasets_folder: Path
) -> None:
    push_dataset(ours)
    _forget(datasets_folder)
    file = hub / "us" / NAME / "data" / "main_data.hdf5"
    if damage == "flipped":
        _flip(file)
    else:
        os.truncate(file, 100_000)
    with pytest.raises(InvalidDatasetError, match=NAME):
        pull_dataset(NAME)
    assert list((datasets_folder / NAME).parent.iterdir()) == []


def test_a_dataset_under_another_name_than_its_own_is_not_found(
    hub: Path, ours: MinariDataset
) -> None:
    push_dataset(ours)
    other = NAME.replace("5k", "6k")
    registered = hub / "us" / "spin" / "namespace_metadata.json"
    registered.write_text(registered.read_text().replace(NAME, other))
    (hub / "us" / NAME).rename(hub / "us" / other)
    with pytest.raises(DatasetNotFoundError, match=NAME):
        pull_dataset(other)


def test_the_command_line_pushes_and_pulls(
    hub: Path, ours: MinariDataset, datasets_folder: Path
) -> None:
    pushed = CliRunner().invoke(app, ["data", "push", NAME])
    assert f"{NAME} is at hf://us/{NAME}" in pushed.output
    again = CliRunner().invoke(app, ["data", "pull", NAME])
    assert "exists on this machine" in again.output
    _forget(datasets_folder)
    pulled = CliRunner().invoke(app, ["data", "pull", NAME])
    assert "downloaded" in pulled.output
    unknown = CliRunner().invoke(app, ["data", "push", "spin/maze-a3/medium-v0"])
    assert isinstance(unknown.exception, DatasetNotFoundError)
    assert NAME in str(unknown.exception)
