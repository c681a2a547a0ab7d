"""A run on data of an environment whose action is a Dict: trained, played and reported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
from typer.testing import CliRunner

from spin_d3rlpy import FactoredBC, collect, load_policy, save_dataset
from spin_d3rlpy.cli import app
from spin_d3rlpy.data.bins_texts import bins_of_texts
from spin_d3rlpy.files.yaml_settings import read_settings
from spin_d3rlpy.runs.play import play_episodes
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.report import ReportSettings, measure_run
from spin_d3rlpy.runs.report_page import write_page
from spin_d3rlpy.runs.settings import TrainSettings
from spin_d3rlpy.runs.training import run_training
from spin_envs import Bins
from tests.envs.pad import ID, Pad

NAME = "user/pad-v0"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    gymnasium.register(ID, entry_point="tests.envs.pad:Pad")
    yield
    gymnasium.registry.pop(ID)


def test_a_run_is_trained_played_and_reported(tmp_path: Path) -> None:
    env = gymnasium.make(ID)
    env.action_space.seed(0)
    data = collect(env, lambda _: env.action_space.sample(), 20, progress=False, bins=3)
    save_dataset(data, NAME, env=env)
    settings = TrainSettings(
        dataset=NAME, algorithm="FactoredIQL", recipe="smoke", n_steps=2, n_steps_per_epoch=2
    )
    result = run_training(tmp_path / "run", settings, show_progress=False)
    assert isinstance(env.unwrapped, Pad)
    opened = open_policy(str(tmp_path / "run"))
    assert play_episodes(opened, episodes=2)["episodes"] == 2
    assert "return" in result
    quick = ReportSettings(fqe_steps=2, model_updates=4, n_examples=2)
    report = measure_run(tmp_path / "run", quick)
    assert report.flat_actions == data.flat_actions
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "stick/1" in page
    assert "slot 1" not in page


def save_unbinned() -> None:
    """Episodes of random actions as Minari has them."""
    env, rng, n = gymnasium.make(ID), np.random.default_rng(0), Pad.steps_of_episode
    episodes = []
    for _ in range(9):
        gears, two = rng.integers(4, 7, (n, 1)), rng.integers(2, size=(n, 2)).astype(np.int8)
        stick = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        episodes.append(
            minari.data_collector.EpisodeBuffer(
                observations=rng.uniform(-1, 1, (n + 1, 3)).astype(np.float32),
                actions={"buttons": (gears, two), "stick": stick},
                rewards=rng.normal(size=n),
                terminations=np.zeros(n, bool),
                truncations=np.arange(n) == n - 1,
                infos={},
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the description lacks
        minari.create_dataset_from_buffers(NAME, episodes, env=env)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output + str(result.exception or "")


def test_bins_of_continuous_actions_are_options(tmp_path: Path) -> None:
    save_unbinned()
    small = ["--algorithm", "FactoredIQL", "--recipe", "smoke", "--steps", "2", "--episodes", "2"]
    small += ["--out", str(tmp_path / "run"), "--no-progress"]
    assert "stick" in run("train", NAME, *small, code=1)  # names what is missing
    bins = ["--bins", "stick/0=quantiles:3", "--bins", "stick/1=-1,-0.5,0.5,1"]
    run("train", NAME, *small, *bins)
    policy = load_policy(tmp_path / "run" / "policy.safetensors")
    assert policy.config.nvec == [3, 2, 2, 3, 3]
    assert policy.flat_actions.flatten({**Pad.sample(0), "stick": [0.9, 0.4]})[3:].tolist() == [
        2,
        1,
    ]
    kept = read_settings(tmp_path / "run" / "config.yaml")["bins"]
    assert kept == ["stick/0=quantiles:3", "stick/1=-1,-0.5,0.5,1"]
    run("train", NAME, *small, *bins)  # is finished
    assert "bins" in run("train", NAME, *small, "--bins", "3", code=1)  # another run
    # What the policy has reads the data again.
    estimate = ["evaluate", tmp_path / "run", "--dataset", NAME, "--steps", 2, "--no-progress"]
    assert "not to be believed" in run(*estimate, code=1)  # it is read, of noise
    quick = ReportSettings(fqe_steps=2, model_updates=4, n_examples=2)
    assert measure_run(tmp_path / "run", quick).flat_actions == policy.flat_actions
    policy.fit(NAME, n_steps=1, show_progress=False)
    with pytest.raises(ValueError, match="bins="):
        FactoredBC().fit(NAME, n_steps=1, show_progress=False)
    small[-2] = str(tmp_path / "asm")
    run("pretrain", NAME, "--recipe", "smoke", "--updates", 1, *small[-3:], "--bins", "3")


def test_bins_are_written_as_texts() -> None:
    assert bins_of_texts([]) is None
    assert bins_of_texts(["7"]) == 7
    assert bins_of_texts(["quantiles:7"]) == Bins(7, by="quantiles")
    assert bins_of_texts(["-1,0,1"]) == Bins(edges=(-1, 0, 1))
    assert bins_of_texts(["a=b=5", "c=0,1.5,2"]) == {"a=b": 5, "c": [0.0, 1.5, 2.0]}
    for wrong in (["five"], ["5.5"], ["quantiles:"], ["1,x"], ["a="]):
        with pytest.raises(ValueError, match="as how many"):
            bins_of_texts(wrong)
    for wrong in (["5", "a=5"], ["a=5", "a=6"], ["5", "6"]):
        with pytest.raises(ValueError, match="once for"):
            bins_of_texts(wrong)
    with pytest.raises(ValueError, match="finite edges"):
        bins_of_texts(["0,1,inf"])
