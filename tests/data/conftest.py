"""Datasets for the tests: tiny random-weight policies, built once into a temporary folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from numpy.typing import NDArray

import spin_envs.behavior
from spin_d3rlpy.data import build_dataset, parse_name
from spin_d3rlpy.data.minari import check, staging, workers
from spin_d3rlpy.data.minari.playing import answer

MIX = "spin/cheetah-run-b3/random-medium-expert-v0"
Workers = workers.Workers


def _write_policy(
    folder: Path,
    name: str,
    seed: int,
    obs: int = 17,
    n: int = 6,
    choices: int = 3,
    target: float = 290.0,
) -> None:
    rng = np.random.default_rng(seed)
    width, hidden, slots = 8, 16, choices * n
    arrays: dict[str, NDArray[Any]] = {
        "nvec": np.full(n, choices),
        "mean": np.zeros(obs),
        "std": np.ones(obs),
        "clip": np.array(10.0),
        "block0.norm.weight": np.ones((2, width)),
        "block0.norm.bias": np.zeros((2, width)),
        "norm.weight": np.ones((2, width)),
        "norm.bias": np.zeros((2, width)),
    }
    sizes = {
        "input": (obs, width),
        "block0.up": (width, hidden),
        "block0.down": (hidden, width),
        "head": (width, slots),
    }
    for layer, (rows, columns) in sizes.items():
        arrays[f"{layer}.weight"] = rng.normal(size=(2, rows, columns))
        arrays[f"{layer}.bias"] = rng.normal(size=(2, columns))
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    record = {
        "algorithm": f"random weights {seed}",
        "mean_return": 300.0,
        "target_return": target,
    }
    (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    _write_policy(folder, "cheetah-run-b3-medium", seed=1)
    _write_policy(folder, "cheetah-run-b3-expert", seed=2, target=664.57)
    _write_policy(folder, "finger-spin-b3-expert", seed=3, obs=9, n=2)
    for seed, level in enumerate(("medium", "expert"), start=4):
        _write_policy(folder, f"maze-a3-{level}", seed, obs=2, n=3, choices=2)
    return folder


class InThisProcess:
    """Stands in for `Workers`, of which each takes a second to start."""

    def __init__(self, n: int, quiet: bool = False) -> None: ...

    def submit(self, verb: str, fields: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(answer(verb, fields))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def _no_processes() -> Iterator[None]:
    """Datasets are built in this process, but for tests of the processes that usually do it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (workers, staging, check):
            patch.setattr(module, "Workers", InThisProcess)
        yield


@pytest.fixture
def _processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (workers, staging, check):
        monkeypatch.setattr(module, "Workers", Workers)
    workers.worker_arithmetic.cache_clear()
    yield
    workers.worker_arithmetic.cache_clear()


def _use(patch: pytest.MonkeyPatch, datasets: Path, policies: Path) -> None:
    patch.setenv("MINARI_DATASETS_PATH", str(datasets))
    patch.delenv("MINARI_REMOTE", raising=False)
    patch.setattr(spin_envs.behavior, "_policy_folder", lambda: policies)


@pytest.fixture(autouse=True)
def datasets_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy_folder: Path) -> Path:
    """Every test has an empty Minari folder of its own, and the tiny policies."""
    folder = tmp_path / "datasets"
    _use(monkeypatch, folder, policy_folder)
    return folder


@pytest.fixture(scope="session")
def built_folder(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> Path:
    """A Minari folder with the mixed dataset in 5k transitions, built by one process."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        _use(patch, folder, policy_folder)
        build_dataset(parse_name(MIX, 5000), jobs=1, progress=False)
    return folder


@pytest.fixture
def built(
    built_folder: Path, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> MinariDataset:
    """The built dataset; the test reads from the shared folder and must not write to it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(built_folder))
    return minari.load_dataset(parse_name(MIX, 5000).name)


@pytest.fixture(scope="session")
def built_3k(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> dict[str, Any]:
    """The record of the same dataset of 3k transitions, an episode of each policy."""
    with pytest.MonkeyPatch.context() as patch:
        _use(patch, tmp_path_factory.mktemp("built_3k"), policy_folder)
        build_dataset(spec := parse_name(MIX, 3000), jobs=1, progress=False)
        metadata: dict[str, Any] = minari.load_dataset(spec.name).storage.metadata
        return metadata


@dataclasses.dataclass
class ForeignEpisode:
    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[Any]
    terminated: bool = False
    infos: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytest.fixture
def make_minari() -> Callable[..., MinariDataset]:
    """Returns a function that writes a third party's dataset."""

    def make(
        action_space: gymnasium.Space[Any],
        episodes: list[ForeignEpisode],
        observation_space: gymnasium.Space[Any] | None = None,
        env_spec: Any = None,
        name: str = "others/things-v0",
    ) -> MinariDataset:
        folder = get_dataset_path(name) / "data"
        folder.parent.mkdir(parents=True)
        storage = MinariStorage.new(
            folder,
            observation_space=observation_space or Box(-np.inf, np.inf, (2,), np.float32),
            action_space=action_space,
            env_spec=env_spec,
        )
        storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
        for e in episodes:
            ends = np.zeros((2, len(e.rewards)), bool)
            ends[0 if e.terminated else 1, -1] = True
            storage.update_episodes(
                [
                    EpisodeBuffer(
                        None, None, None, e.observations, e.actions, e.rewards, *ends, e.infos
                    )
                ]
            )
        return MinariDataset(folder)

    return make


@pytest.fixture
def foreign_episodes() -> Callable[..., list[ForeignEpisode]]:
    """Returns a function that makes episodes of unequal lengths, the second one terminated.

    An observation holds (episode, step), a reward 100 * episode + step, so that a batch can be
    checked row by row.
    """

    def make(nvec: list[int], flat: bool = False) -> list[ForeignEpisode]:
        rng = np.random.default_rng(0)
        episodes = []
        for i, length in enumerate([5, 3, 7]):
            steps = np.arange(length + 1)
            actions = rng.integers(nvec, size=(length, len(nvec)))
            episodes.append(
                ForeignEpisode(
                    np.stack([np.full(length + 1, i), steps], axis=1).astype(np.float32),
                    actions[:, 0] if flat else actions,
                    (100.0 * i + steps[:-1]).astype(np.float32),
                    terminated=i == 1,
                )
            )
        return episodes

    return make
