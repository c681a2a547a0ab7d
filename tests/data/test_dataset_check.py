"""`data check` on a good dataset and on one that is damaged in each way."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from minari import MinariDataset
from typer.testing import CliRunner

from spin_d3rlpy import load_dataset
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer, build_dataset, parse_name
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError

MIX = "spin/cheetah-run-b3/random-medium-expert-v0"


@pytest.fixture
def copied(built_folder: Path, tmp_path: Path) -> Path:
    """A copy of the small dataset's folder, to be damaged."""
    source = built_folder / "spin" / "cheetah-run-b3" / "random-medium-expert-5k-v0"
    return Path(shutil.copytree(source, tmp_path / "copy")) / "data"


def _edit(folder: Path, array: str, change: Callable[[Any], Any]) -> None:
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file[array][...] = change(file[array][...])


def _edit_record(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads((folder / "metadata.json").read_text())
    change(record)
    (folder / "metadata.json").write_text(json.dumps(record))


def _set(index: Any, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[index] = value
        return array

    return change


def test_a_good_dataset_has_no_problems(built: MinariDataset) -> None:
    report = check_dataset(built, replay_episodes=None)
    assert report.problems == []
    assert report.notes == []
    assert report.replayed == [0, 1, 2, 3, 4]
    assert report.lengths == [1000] * 5
    assert report.returns == pytest.approx([float(e.rewards.sum()) for e in built], rel=1e-5)
    assert "random: return" in report.summary()
    assert report.summary().endswith("good")


def test_a_few_episodes_from_all_over_are_replayed_by_default(built: MinariDataset) -> None:
    assert check_dataset(built).replayed == [0, 2, 4]
    assert check_dataset(built, replay_episodes=0).replayed == []


def test_a_maze_dataset_is_good() -> None:
    spec = parse_name("spin/maze-a3/random-medium-expert-v0", 2000)
    build_dataset(spec, jobs=1, progress=False)
    report = check_dataset(open_local(spec.name), replay_episodes=None)
    assert report.problems == []
    assert len(report.replayed) == len(report.returns) > 12


@pytest.mark.parametrize(
    ("array", "change", "problem"),
    [
        (
            "episode_2/observations",
            lambda a: np.roll(a, 1, axis=0),
            "Replayed episode 2 .*observation 0 is not",
        ),
        ("episode_2/actions", lambda a: np.roll(a, 1, axis=0), "Replayed episode 2 .*observation"),
        ("episode_2/rewards", _set(7, 0.5), r"Replayed episode 2 .*reward of step 7 is 0\.5"),
        ("episode_1/observations", _set((5, 3), np.nan), "observation at step 5 of episode 1"),
        ("episode_1/rewards", _set(9, np.inf), "reward at step 9 of episode 1"),
        ("episode_3/actions", _set((4, 2), 3), "Slot 2 at step 4 of episode 3 is 3"),
        ("episode_3/actions", _set((4, 2), -1), "Slot 2 at step 4 of episode 3 is -1"),
        ("episode_4/truncations", _set(10, True), r"episode 4 to be .*steps \[10, 999\]"),
        ("episode_4/truncations", _set(999, False), r"episode 4 to be .*steps \[\]"),
        ("episode_4/rewards", _set(0, 50.0), "mean return of expert"),
        ("episode_1/actions", lambda a: a[::-1], "checksum of the data"),
    ],
)
def test_damaged_arrays_are_found(
    copied: Path, array: str, change: Callable[[Any], Any], problem: str
) -> None:
    _edit(copied, array, change)
    report = check_dataset(open_local(copied), 3 if problem.startswith("Replayed") else 0)
    assert any(re.search(problem, p) for p in report.problems), report.problems
    assert report.summary().endswith("bad")
    # What is found without a simulator is not read without a word either.
    with pytest.raises((InvalidDatasetError, UserWarning), match=r"episode \d|own record"):
        load_dataset(open_local(copied))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: r.update(checksum="sha256:0"), "checksum of the data"),
        (lambda r: r.update(total_steps=4999), "transitions is 5000, the record says 4999"),
        (lambda r: r["returns"].update(mean=300.0), "mean return of all episodes .* says 300"),
        (
            lambda r: r["composition"][0]["returns"].update(max=9.0),
            "max return of random .* says 9",
        ),
        (
            lambda r: r["composition"][1].update(transitions=7),
            "transitions of medium is 2000, the record says 7",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_found(
    copied: Path, change: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    _edit_record(copied, change)
    report = check_dataset(open_local(copied), replay_episodes=0)
    assert len(report.problems) == 1
    assert re.search(problem, report.problems[0])
    with pytest.warns(UserWarning, match=f"own record.*{problem}"):
        DeviceReplayBuffer.from_minari(open_local(copied))


def test_other_simulator_versions_are_named_when_a_replay_differs(copied: Path) -> None:
    _edit_record(copied, lambda r: r["provenance"]["versions"].update(mujoco="2.0.0"))
    assert check_dataset(open_local(copied)).problems == []
    _edit(copied, "episode_0/rewards", _set(1, 9.0))
    problems = check_dataset(open_local(copied)).problems
    assert any("recorded with mujoco 2.0.0" in p for p in problems)


def test_a_missing_episode_is_reported(copied: Path) -> None:
    with h5py.File(copied / "main_data.hdf5", "a") as file:
        del file["episode_3"]
    report = check_dataset(open_local(copied))
    assert "Episode 3 cannot be read" in report.problems[-1]


def test_others_datasets_are_checked_as_far_as_they_go(
    make_minari: Callable[..., MinariDataset], foreign_episodes: Callable[..., list[Any]]
) -> None:
    report = check_dataset(make_minari(MultiDiscrete([3, 4]), foreign_episodes([3, 4])))
    assert report.problems == []
    assert len(report.notes) == 2
    assert report.lengths == [5, 3, 7]


def test_continuous_actions_are_refused(
    make_minari: Callable[..., MinariDataset], foreign_episodes: Callable[..., list[Any]]
) -> None:
    dataset = make_minari(Box(-1.0, 1.0, (2,), np.float32), foreign_episodes([3, 4]))
    with pytest.raises(InvalidActionSpaceError, match="MultiDiscrete"):
        check_dataset(dataset)


def _check(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", "check", *arguments])
    return result.exit_code, result.output


def test_the_command_draws_returns_and_its_exit_code_tells(
    copied: Path, built: MinariDataset, tmp_path: Path
) -> None:
    picture = tmp_path / "pictures" / "returns.png"
    code, text = _check(built.id, "--picture", str(picture), "--all")
    assert code == 0
    assert "replayed in the simulator: 5 episodes" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    _edit(copied, "episode_1/observations", _set((5, 3), np.nan))
    code, text = _check(str(copied), "--picture", str(picture))
    assert code == 1
    assert "WRONG: The observation at step 5 of episode 1 is not finite" in text


def test_a_file_that_ends_early_is_reported(copied: Path) -> None:
    path = copied / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[:-20_000])
    code, text = _check(str(copied))
    assert code == 1
    assert "WRONG: Episode 0 cannot be read" in text


def test_a_dataset_that_is_not_there_is_not_built(datasets_folder: Path) -> None:
    result = CliRunner().invoke(app, ["data", "check", MIX])
    assert "There is no dataset" in str(result.exception)
    assert not datasets_folder.exists() or not list(datasets_folder.rglob("*.hdf5"))


def test_a_check_writes_no_picture_unasked(
    built: MinariDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir(mode=0o555)
    monkeypatch.chdir(folder)
    code, text = _check(built.id)
    assert code == 0, text
    assert "drawn" not in text
    assert list(folder.iterdir()) == []
