"""Two trainings in one folder: the second changes nothing there and gets no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spin_d3rlpy.demo import run as demo
from spin_d3rlpy.errors import FolderInUseError
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import write_json
from spin_d3rlpy.runs.settings import PretrainSettings, TrainSettings
from spin_d3rlpy.runs.training import CONFIG, CURVE, RESULT, run_pretraining, run_training

DATASET = "spin/cheetah-run-b3/random-v0"


def begin(folder: Path, kind: str, seed: int = 0) -> Any:
    if kind == "train":
        return run_training(folder, TrainSettings(DATASET, n_steps=1, seed=seed))
    if kind == "pretrain":
        return run_pretraining(folder, PretrainSettings(DATASET, seed=seed))
    settings = {"A": TrainSettings(DATASET), "B": TrainSettings(DATASET)}
    return demo._train(folder, settings, show_progress=False)


@pytest.mark.parametrize("kind", ["train", "pretrain", "demo"])
def test_a_second_run_changes_nothing_in_the_first_ones_folder(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        exclusive_folder(tmp_path),
        pytest.raises(FolderInUseError, match=f"Another run is using {tmp_path}"),
    ):
        begin(tmp_path, kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["train", "pretrain"])
def test_no_run_gets_the_result_of_another_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fcntl")

    def work(folder: Path, *_: Any) -> dict[str, Any]:
        """A training during which another user starts a second one."""
        before = (folder / CONFIG).read_bytes()
        with pytest.raises(FolderInUseError):
            begin(folder, kind, seed=1)
        assert (folder / CONFIG).read_bytes() == before
        (folder / CURVE).touch()
        write_json(folder / RESULT, {"seed": 0})
        return {"seed": 0}

    name = {"train": "_train", "pretrain": "_pretrain"}[kind]
    monkeypatch.setattr(f"spin_d3rlpy.runs.training.{name}", work)
    assert begin(tmp_path, kind) == {"seed": 0}
    assert begin(tmp_path, kind) == {"seed": 0}  # its own
    with pytest.raises(ValueError, match=r"holds a run with seed=0 \(asked for: 1\)"):
        begin(tmp_path, kind, seed=1)
