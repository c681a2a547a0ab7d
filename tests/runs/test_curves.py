from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.runs.curves import find_runs, read_curves
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.runs.training import run_training


def write_run(folder: Path, values: list[float], **settings: Any) -> None:
    folder.mkdir(parents=True)
    write_csv(folder / "curve.csv", [{"step": 5 * i, "return": v} for i, v in enumerate(values)])
    (folder / "config.yaml").write_text(yaml.safe_dump({"dataset": "d", **settings}))


def test_seeds_of_one_method_are_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "0", [1, 2, 3], algorithm="SPINIQL", seed=0, n_steps=10)
    write_run(tmp_path / "a" / "1", [3, 4], algorithm="SPINIQL", seed=1, n_steps=20)
    write_run(tmp_path / "b", [7], algorithm="FactoredIQL", seed=0)
    curves = read_curves(find_runs([tmp_path]))["d"]
    assert curves.keys() == {"SPINIQL", "FactoredIQL"}
    # As far as all seeds got.
    assert np.array_equal(curves["SPINIQL"].returns, [[1, 2], [3, 4]])
    assert np.array_equal(curves["SPINIQL"].steps, [0, 5])


def test_seeds_are_drawn_by_their_mean_seconds(tmp_path: Path) -> None:
    for seed, pace in enumerate((1.0, 3.0)):
        write_run(tmp_path / str(seed), [], algorithm="SPINIQL", seed=seed)
        rows = [{"step": 5 * i, "seconds": pace * i, "return": 10.0 * i} for i in range(3)]
        write_csv(tmp_path / str(seed) / "curve.csv", rows)
    [curve] = read_curves(find_runs([tmp_path]), x="seconds")["d"].values()
    assert curve.steps.tolist() == [0.0, 2.0, 4.0]
    assert curve.returns.shape == (2, 3)
    with pytest.raises(ValueError, match="Expected x 'step' or 'seconds'"):
        read_curves(find_runs([tmp_path]), x="hours")  # type: ignore[arg-type]
    write_run(tmp_path / "old", [1.0], algorithm="SPINIQL", seed=7)
    with pytest.raises(InvalidDatasetError, match=r"curve\.csv has no column 'seconds'.*--x step"):
        read_curves(find_runs([tmp_path]), x="seconds")


def test_methods_of_one_algorithm_are_told_apart(tmp_path: Path) -> None:
    for i, width in enumerate((8, 16)):
        fields = {"transformer": {"width": width, "n_blocks": 2}, "batch_size": 3}
        write_run(tmp_path / str(i), [1], algorithm="SPINIQL", seed=0, fields=fields)
    curves = read_curves(find_runs([tmp_path]))["d"]
    assert sorted(curves) == ["SPINIQL, transformer.width=16", "SPINIQL, transformer.width=8"]


def test_pretrainings_are_told_apart(tmp_path: Path) -> None:
    for objective in ("masked", "contrastive"):
        write_run(tmp_path / objective, [0.5], pretraining={"objective": objective}, seed=0)
    assert sorted(read_curves(find_runs([tmp_path]))["d"]) == [
        "pre-training, pretraining.objective=contrastive",
        "pre-training, pretraining.objective=masked",
    ]


def test_folders_without_curves_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no curve\.csv of a training"):
        find_runs([tmp_path])
    write_run(tmp_path / "a", [1], algorithm="SPINIQL", seed=0)
    with pytest.raises(InvalidDatasetError, match="has a column 'loss'"):
        read_curves(find_runs([tmp_path]), "loss")


def test_an_attempt_that_failed_at_its_start_does_not_block_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for algorithm in ("FactoredBC", "FactoredIQL"):
        values = {"dataset": "spin/nothing-v0", "algorithm": algorithm, "n_steps": 5}
        with pytest.raises(DatasetNotFoundError):  # and no error about the attempt before
            run_training(folder, train_settings(values, "test"), show_progress=False)
    write_csv(folder / "curve.csv", [{"step": 5, "return": 1.0}])
    values["n_steps"] = 4
    with pytest.raises(ValueError, match=r"holds a run with n_steps=5 \(asked for: 4\)"):
        run_training(folder, train_settings(values, "test"), show_progress=False)


def test_the_clock_of_a_folder_is_a_setting_which_older_files_lack(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    values = {"dataset": "spin/nothing-v0", "algorithm": "FactoredBC", "seconds": 1.0}
    with pytest.raises(DatasetNotFoundError):
        run_training(folder, train_settings(values, "test"), show_progress=False)
    config = folder / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    assert "clock: wall\n" in lines
    config.write_text("".join(line for line in lines if not line.startswith("clock:")))
    write_csv(folder / "curve.csv", [{"step": 5, "return": 1.0}])
    with pytest.raises(DatasetNotFoundError):  # resumed, not refused
        run_training(folder, train_settings(values, "test"), show_progress=False)
    values["clock"] = "ops"
    with pytest.raises(ValueError, match=r"clock='wall' \(asked for: 'ops'\)"):
        run_training(folder, train_settings(values, "test"), show_progress=False)
