"""The whole slice with the shipped policies: build, pre-train, train, evaluate, save, load."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import d3rlpy
import minari
import numpy as np
import PIL.Image
import pytest

import spin_d3rlpy.demo.run
import spin_envs.dispatch
from spin_d3rlpy import SPINIDQL, SPINIQL, DeviceReplayBuffer, load_dataset, load_policy
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.data import parse_name
from spin_d3rlpy.demo import ALGORITHMS, TASKS, run_demo
from spin_d3rlpy.demo.courier_map import draw_map, wasted_couriers, wasted_share
from spin_d3rlpy.policies import SPIN
from tests.algos.problems import new_algorithm

pytestmark = pytest.mark.usefixtures("short_episodes", "brief_tests_of_critics")
in_background = spin_d3rlpy.demo.run._in_background
SMOKE: dict[str, Any] = {
    "minutes": 1 / 60,
    "size": 2_000,
    "recipe": "smoke",
    "show_progress": False,
    "log": lambda _: None,
}


@pytest.fixture(scope="module", autouse=True)
def _datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
    patch.delenv("MINARI_REMOTE", raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """One training after the other, as another process takes seconds to start; little to play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spin_d3rlpy.demo.run, "_in_background", lambda *_: nullcontext(Mock()))
        patch.setattr(spin_d3rlpy.demo.run, "FINAL_EPISODES", 2)
        patch.setattr(spin_envs.dispatch, "COORDINATION_EPISODE_STEPS", 10)
        patch.setattr(spin_d3rlpy.demo.run, "draw_map", partial(draw_map, frames=4))
        yield


@pytest.mark.slow
def test_algorithms_train_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spin_d3rlpy.demo.run, "_in_background", in_background)
    settings = {**SMOKE, "minutes": 0.75}  # longer than a process takes to start
    run_demo(tmp_path, "robot", **settings)
    ended = [(tmp_path / name / "result.json").stat().st_mtime for name in ALGORITHMS.values()]
    began = [(tmp_path / name / "config.yaml").stat().st_mtime for name in ALGORITHMS.values()]
    assert max(began) < min(ended)
    assert "spin_factored_iql" not in capfd.readouterr().out  # the other process is silent


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("demo")
    lines: list[str] = []
    run_demo(folder, **{**SMOKE, "log": lines.append})
    return folder, lines


def frames_of(image: Any) -> int:
    frames: int = image.n_frames  # Pillow does not type it
    return frames


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as f:
        return list(csv.DictReader(f))


def test_couriers_leave_table_curves_map_and_policies(demo: tuple[Path, list[str]]) -> None:
    folder, lines = demo
    rows = read(folder / "results.csv")
    assert {r["decided by"] for r in rows} == {"the data", "SPIN", "F-IQL", "the expert"}
    assert (rows[0]["decided by"], rows[-1]["decided by"]) == ("the data", "the expert")
    assert float(rows[1]["return"]) <= float(rows[2]["return"])
    assert rows[-1]["of the expert"] == "100%"
    trained = {r["decided by"]: r for r in rows[1:-1]}
    # Each has as much work, pre-training included, whatever its steps cost.
    assert all(0.9 < float(r["seconds"]) < 2.0 for r in trained.values())
    assert all(0 <= int(r["sent in vain"].strip("%")) <= 100 for r in trained.values())
    curves = read(folder / "curves.csv")
    for label, row in trained.items():
        steps = [int(r["step"]) for r in curves if r["algorithm"] == label]
        assert steps[0] == 0
        assert steps[-1] == int(row["steps"])
        assert len(steps) == 1 + TASKS["couriers"].n_epochs
    assert (folder / "curves.png").stat().st_size > 10_000
    assert (folder / "map.png").read_bytes()[:4] == b"\x89PNG"
    with PIL.Image.open(folder / "map.gif") as animation:
        assert frames_of(animation) == 4
    assert "SPIN " in "\n".join(lines)
    assert "load_policy" in "\n".join(lines)
    policy = load_policy(folder / "SPINIDQL" / "policy.safetensors")
    assert isinstance(policy, SPINIDQL)
    assert policy.predict(np.zeros((2, 100), np.float32)).shape == (2, 20)

    # What is there is used again, and trainings with other settings are not.
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*/*") if p.is_file()}
    results = (folder / "results.csv").read_text()
    run_demo(folder, **SMOKE)
    assert {p: p.stat().st_mtime_ns for p in folder.glob("*/*") if p.is_file()} == before
    assert (folder / "results.csv").read_text() == results
    other = {**SMOKE, "seed": 1}
    with pytest.raises(ValueError, match=r"seed=0.*--out"):
        run_demo(folder, **other)


def test_who_is_sent_in_vain() -> None:
    couriers = np.array([[[0, 0], [1, 0], [5, 5], [0, 0]]])
    orders = np.array([[[2, 0], [5, 6], [0, 1], [9, 9]]])
    # Two at order 0, of whom the second is nearer; one at order 1 alone; one stays.
    actions = np.array([[0, 0, 1, 4]])
    assert wasted_couriers(actions, couriers, orders).tolist() == [[True, False, False, False]]
    assert wasted_share(actions) == 0.25
    assert wasted_share(np.array([[4, 4, 4, 4]])) == 0.0


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a task of couriers, robot; got 'cars'"):
        run_demo(tmp_path, "cars")


@pytest.mark.slow
def test_an_interrupted_demo_keeps_what_is_trained(
    demo: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, _ = demo
    shutil.copytree(folder / "SPINIDQL", tmp_path / "SPINIDQL")
    run_demo(tmp_path, **SMOKE)
    assert read(tmp_path / "results.csv")[0] == read(folder / "results.csv")[0]


def test_fit_takes_a_name_a_minari_dataset_and_a_buffer() -> None:
    name = parse_name("spin/cheetah-run-b3/medium-expert-v0", 2_000).name
    buffer, env = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=2_000, progress=False)
    outcomes = []
    for dataset in (name, minari.load_dataset(name), buffer):
        d3rlpy.seed(0)
        algo = new_algorithm(
            SPINIQL,
            batch_size=32,
            policy=SPIN(transformer=TransformerConfig(width=16, n_blocks=1)),
            pretraining=PretrainingConfig(max_updates=3, batch_size=64),
        )
        algo.fit(
            dataset,
            n_steps=3,
            show_progress=False,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            evaluators={"env": d3rlpy.metrics.EnvironmentEvaluator(env, n_trials=1)},
        )
        observation = np.linspace(-1, 1, 34, dtype=np.float32).reshape(2, 17)
        outcomes.append(algo.predict_value(observation, algo.predict(observation)))
    assert np.array_equal(outcomes[0], outcomes[1])
    assert np.array_equal(outcomes[0], outcomes[2])


def test_shipped_levels_are_ordered_and_the_data_say_so() -> None:
    buffer, _ = load_dataset(
        "spin/cheetah-run-b3/random-medium-expert-v0", size=10_000, progress=False
    )
    assert isinstance(buffer, DeviceReplayBuffer)
    returns = np.array([episode.compute_return() for episode in buffer.episodes])
    random, medium, expert = returns[:5], returns[5:9], returns[9:]
    assert random.mean() < 20 < 100 < medium.mean() < expert.mean()


def test_pre_training_ends_where_the_first_measured_steps_begin() -> None:
    before = {"seconds": "0.0", "update_seconds": "0.0"}
    epochs = [
        {"seconds": str(seconds), "update_seconds": str(seconds - 127.5)}
        for seconds in (133.1, 150.0)
    ]
    assert spin_d3rlpy.demo.run._pretraining_seconds([before, *epochs]) == 127.5
    at_once = [{"seconds": "38.0", "update_seconds": "37.5"}, {"seconds": "150.0"}]
    assert spin_d3rlpy.demo.run._pretraining_seconds([before, *at_once]) == 0.0
    assert spin_d3rlpy.demo.run._pretraining_seconds([before]) == 0.0
