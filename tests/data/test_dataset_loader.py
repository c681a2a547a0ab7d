"""Loading by name, by path, from Minari datasets and from d3rlpy buffers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from d3rlpy.dataset import Episode, create_infinite_replay_buffer
from gymnasium.spaces import MultiDiscrete
from minari import MinariDataset
from minari.storage import remotes

from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer, load_dataset, loader
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError, NvecMismatchError
from spin_envs import MissingDependencyError

MIX = "spin/cheetah-run-b3/random-medium-expert-v0"
MIX_5K = "spin/cheetah-run-b3/random-medium-expert-5k-v0"
NVEC = [3, 5]
Make = Callable[..., Any]


@pytest.fixture
def no_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("The dataset must not be built.")

    monkeypatch.setattr(loader, "build_dataset", refuse)


def test_a_dataset_is_built_on_first_use_and_found_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "spin/cheetah-run-b3/medium-v0"
    buffer, env = load_dataset(name, size=1000, jobs=1, progress=False)
    assert buffer.transition_count == 1000
    assert isinstance(env.action_space, MultiDiscrete)
    assert env.action_space.nvec.tolist() == buffer.nvec == [3] * 6
    assert env.reset(seed=0)[0].shape == (17,)
    monkeypatch.setattr(loader, "build_dataset", None)
    again, _ = load_dataset(name, size=1000)
    assert np.array_equal(again.observations, buffer.observations)


@pytest.mark.usefixtures("no_builds")
def test_a_name_with_its_size_a_path_and_a_minari_dataset_give_the_same(
    built: MinariDataset,
) -> None:
    data = Path(built.spec.data_path)
    sources = [MIX_5K, built, data, data.parent, str(data)]
    expected, _ = load_dataset(MIX, size=5000)
    for source in sources:
        buffer, env = load_dataset(source)
        assert np.array_equal(buffer.actions, expected.actions)
        assert env.spec is not None
        assert env.spec.id == "spin/cheetah-run-v0"


@pytest.mark.usefixtures("no_builds")
def test_a_local_dataset_needs_no_policy_and_no_known_level(
    built: MinariDataset, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = datasets_folder / "spin" / "cheetah-run-b3" / "medium-published-v0"
    shutil.copytree(Path(built.spec.data_path).parent, target)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(datasets_folder))
    buffer, _ = load_dataset("spin/cheetah-run-b3/medium-published-v0")
    assert buffer.transition_count == 5000


def test_unknown_names_are_refused_with_near_matches() -> None:
    with pytest.raises(DatasetNotFoundError, match="medium-expert-v0"):
        load_dataset("spin/cheetah-run-b3/medium-expret-v0")


def test_third_party_datasets_come_with_their_environment(
    make_minari: Make, foreign_episodes: Make
) -> None:
    spec = gymnasium.spec("CartPole-v1")
    make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC), env_spec=spec)
    with pytest.warns(UserWarning, match=r"observations of shape \(2,\) .* got shape \(4,\)"):
        buffer, env = load_dataset("others/things-v0")
    assert buffer.nvec == NVEC
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"


def test_a_dataset_without_environment_says_how_to_get_the_data(
    make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    with pytest.raises(InvalidDatasetError, match="from_minari"):
        load_dataset("others/things-v0")
    assert as_device_buffer(dataset).nvec == NVEC


@pytest.mark.parametrize("name", ["nonsense", "../../etc-v0", "cheetah run-v0", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(DatasetNotFoundError):
        load_dataset(name)


def test_a_folder_without_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no Minari dataset in"):
        load_dataset(tmp_path)


def test_a_damaged_dataset_says_so(
    built: MinariDataset, tmp_path: Path, datasets_folder: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(built.spec.data_path, folder)
    (folder / "main_data.hdf5").unlink()
    with pytest.raises(InvalidDatasetError, match="Delete the folder"):
        load_dataset(folder)


def test_a_size_is_only_for_datasets_that_are_built(
    built: MinariDataset, make_minari: Make, foreign_episodes: Make
) -> None:
    for dataset in (built, "others/things-v0"):
        with pytest.raises(ValueError, match="built by name"):
            load_dataset(dataset, size=5000)


class _FakeRemote:
    """Minari's remote storage over a local folder, which the name after fake:// is."""

    def __init__(self, name: str, token: str | None = None) -> None:
        self.root = Path("/", name)

    def list_datasets(self, prefix: str | None = None) -> list[str]:
        found = [p.parents[1].relative_to(self.root) for p in self.root.rglob("metadata.json")]
        return [str(p) for p in found if str(p).startswith(prefix or "")]

    def get_dataset_metadata(self, dataset_id: str) -> Any:
        return json.loads((self.root / dataset_id / "data" / "metadata.json").read_text())

    def list_namespaces(self) -> list[str]:
        return ["spin", "spin/cheetah-run-b3"]

    def download_namespace_metadata(self, namespace: str, path: Path) -> None:
        (path / namespace).mkdir(parents=True, exist_ok=True)
        (path / namespace / "namespace_metadata.json").write_text("{}")

    def download_dataset(self, dataset_id: str, path: Path) -> None:
        shutil.copytree(self.root / dataset_id, path / dataset_id)
        if (self.root / "broken").exists():
            (path / dataset_id / "data" / "metadata.json").unlink()
            raise ConnectionError("lost")


def test_a_download_without_its_package_names_our_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "minari.storage.remotes.huggingface", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spin-d3rlpy\[hf\]'") as raised:
        load_dataset("D4RL/door/human-v2")
    assert "minari[" not in str(raised.value)


@pytest.fixture
def remote(
    built_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets_folder: Path
) -> Path:
    folder = tmp_path / "remote"
    shutil.copytree(built_folder, folder)
    monkeypatch.setitem(remotes._registry, "fake", lambda: _FakeRemote)
    monkeypatch.setenv("MINARI_REMOTE", f"fake:/{folder}")
    return folder


@pytest.mark.usefixtures("no_builds", "remote")
def test_a_hosted_copy_is_downloaded_instead_of_building() -> None:
    buffer, _ = load_dataset(MIX, size=5000)
    assert buffer.transition_count == 5000
    assert list(minari.list_local_datasets()) == [MIX_5K]


@pytest.mark.usefixtures("remote")
def test_what_the_remote_does_not_have_is_built() -> None:
    buffer, _ = load_dataset(MIX, size=3000, jobs=1, progress=False)
    assert buffer.transition_count == 3000


@pytest.mark.parametrize("size", [3000, 5000])
def test_a_broken_remote_is_reported_and_the_dataset_built(size: int, remote: Path) -> None:
    shutil.copytree(remote / MIX_5K, remote / MIX_5K.replace("5k", "3k"))
    metadata = remote / MIX_5K.replace("5k", "3k") / "data" / "metadata.json"
    metadata.write_text(metadata.read_text().replace("-5k-", "-3k-"))
    (remote / "broken").touch()
    with pytest.warns(UserWarning, match="lost.*Building"):
        buffer, _ = load_dataset(MIX, size=size, jobs=1, progress=False)
    assert buffer.transition_count == size


def test_a_third_party_dataset_that_cannot_be_downloaded_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(remotes._registry, "fake", lambda: _FakeRemote)
    monkeypatch.setenv("MINARI_REMOTE", "fake://nowhere")
    with pytest.raises(DatasetNotFoundError, match="D4RL/door/human-v2"):
        load_dataset("D4RL/door/human-v2")


def _stock_buffer(episodes: list[Any]) -> Any:
    return create_infinite_replay_buffer(
        [
            Episode(e.observations[:-1], e.actions, e.rewards[:, None], e.terminated)
            for e in episodes
        ]
    )


def test_fit_takes_every_kind_of_dataset(built: MinariDataset, foreign_episodes: Make) -> None:
    buffer = as_device_buffer(built)
    assert as_device_buffer(buffer) is buffer
    assert as_device_buffer(buffer, [3] * 6) is buffer
    assert as_device_buffer(MIX_5K).transition_count == 5000
    assert as_device_buffer(Path(built.spec.data_path)).transition_count == 5000
    assert as_device_buffer(_stock_buffer(foreign_episodes(NVEC)), NVEC).transition_count == 13


@pytest.mark.parametrize("flat", [False, True])
def test_nvec_of_a_d3rlpy_buffer_is_inferred_with_a_warning(
    flat: bool, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes([4] if flat else NVEC, flat)
    largest = np.concatenate([e.actions.reshape(len(e.actions), -1) for e in episodes]).max(0) + 1
    with pytest.warns(UserWarning, match="Pass nvec="):
        buffer = as_device_buffer(_stock_buffer(episodes))
    assert buffer.nvec == largest.tolist()


@pytest.mark.parametrize("as_buffer", [False, True])
def test_another_nvec_than_the_algorithms_is_refused(as_buffer: bool, built: MinariDataset) -> None:
    dataset = DeviceReplayBuffer.from_minari(built) if as_buffer else built
    with pytest.raises(NvecMismatchError, match=r"nvec=\[3, 3\].*nvec=\[3, 3, 3, 3, 3, 3\]"):
        as_device_buffer(dataset, [3, 3])


@pytest.mark.parametrize("dataset", [None, 3, np.zeros((3, 2)), {"observations": []}])
def test_what_is_no_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(InvalidDatasetError, match=f"got {type(dataset).__name__}"):
        as_device_buffer(dataset)
