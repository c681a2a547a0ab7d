"""The table of local datasets."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from minari import MinariDataset

from tests.measure.datasets import main, table_rows

Make = Callable[..., Any]


def test_a_row_says_what_is_in_a_dataset_and_what_it_costs(
    built: MinariDataset, tmp_path: Path
) -> None:
    out = tmp_path / "datasets.csv"
    main(out)
    with out.open() as file:
        [row] = csv.DictReader(file)
    returns = np.array([e.rewards.sum(dtype=np.float64) for e in built])
    assert row["dataset"] == built.id
    assert (row["task"], row["bins"], row["actuators"]) == ("cheetah-run", "3", "")
    assert (row["level"], row["episodes"]) == ("random-medium-expert-5k", "5")
    assert row["transitions"] == "5000"
    for name, value in {
        "mean_return": returns.mean(),
        "std_return": returns.std(),
        "min_return": returns.min(),
        "max_return": returns.max(),
        "normalized_score": 100 * (returns.mean() - 5.39) / (664.57 - 5.39),
    }.items():
        assert float(row[name]) == pytest.approx(value, abs=0.0051)
    files = Path(built.spec.data_path).rglob("*")
    assert int(row["bytes"]) == sum(p.stat().st_size for p in files)
    assert float(row["build_seconds"]) > 0
    assert row["checksum"] == built.storage.metadata["checksum"]


def test_rows_are_in_the_order_of_tasks_and_levels_and_leave_out_what_has_no_record(
    built_folder: Path, datasets_folder: Path, make_minari: Make, foreign_episodes: Make
) -> None:
    original = built_folder / "spin" / "cheetah-run-b3" / "random-medium-expert-5k-v0"
    names = [
        *(f"spin/cheetah-run-b3/{level}-v0" for level in ("medium", "expert", "medium-expert")),
        "spin/cheetah-run-b3/medium-published-v0",
        "spin/maze-a3/medium-v0",
    ]
    for name in reversed(names):
        shutil.copytree(original, datasets_folder / name)
        metadata = datasets_folder / name / "data" / "metadata.json"
        text = metadata.read_text()
        metadata.write_text(text.replace("spin/cheetah-run-b3/random-medium-expert-5k-v0", name))
    for name in ("spin/mine-v0", "spin/cheetah-run-b3/mine-v0"):
        make_minari(MultiDiscrete([3, 5]), foreign_episodes([3, 5]), name=name)
    rows = table_rows()
    assert [row["dataset"] for row in rows] == names
    assert (rows[-1]["bins"], rows[-1]["actuators"]) == ("", 3)


def test_an_empty_table_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data build"):
        main(tmp_path / "none.csv")
