"""The soak and the memory benchmark: that they run, and that what they find is what happened."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from spin_d3rlpy.data.loader import open_local
from tests.measure import memory, soak, structure_seconds
from tests.measure.memory import measure, run_memory_benchmark, write_dataset
from tests.measure.soak import run_soak, trends
from tests.paper.test_experiments import maze_data


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_soak_writes_a_row_an_epoch_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "load_dataset", maze_data)
    monkeypatch.setattr(soak, "fresh_cpu_ms_per_step", lambda *_: 2.0)
    soak.main(tmp_path / "soak", minutes=0, recipe="smoke")
    rows = _rows(tmp_path / "soak" / "soak.csv")
    assert [row["step"] for row in rows] == ["40", "60", "80"]
    assert all(float(row["resident_mb"]) > 50 for row in rows)
    assert all(float(row["cpu_ms_per_step"]) > 0 for row in rows)
    assert [row["fresh_cpu_ms_per_step"] for row in rows] == ["2.0", "", ""]
    found = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert found["steps"] == 80
    assert found["resident_mb_growth"] == pytest.approx(0.0, abs=200)
    assert (tmp_path / "soak" / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recipe"):
        run_soak(tmp_path, recipe="huge")


def test_trends_are_those_after_the_warm_up() -> None:
    rows = [
        {
            "minutes": float(minute),
            "resident_mb": 900.0 if minute < 10 else 500.0 + 2.0 * minute,
            "open_files": 7,
            "cpu_ms_per_step": 10.0 + 0.01 * minute,
            "fresh_cpu_ms_per_step": (10.0 if minute < 50 else 5.0) if minute % 10 == 0 else "",
        }
        for minute in range(100)
    ]
    found = trends(rows)
    assert found["resident_mb_growth"] == pytest.approx(2.0 * 89)
    assert found["open_files_growth"] == 0.0
    assert found["cpu_growth_percent"] == pytest.approx(100 * 0.89 / 10.545, abs=0.01)
    assert found["over_fresh_first_half"] == pytest.approx(10.205 / 10, abs=0.001)
    assert found["over_fresh_second_half"] == pytest.approx(10.705 / 5, abs=0.001)


@pytest.mark.slow
def test_a_fresh_process_measures_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "load_dataset", maze_data)
    soak.measure("smoke", None)
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", memory.WAYS)
def test_training_is_measured_on_the_made_up_dataset(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setattr(memory, "N_STEPS", 2)
    monkeypatch.setattr(memory, "N_PRETRAINING", 2)
    write_dataset(2_000, features=7)
    assert open_local(memory.NAME).total_steps == 2_000
    found = measure(way, tmp_path)
    assert (found["transitions"], found["features"]) == (2_000, 7)
    size = 2_002 * 7 * 4 + 2_000 * (38 + 4 + 4 + 4)
    assert found["array_mb"] == round(size / 1e6)
    assert found["peak_resident_mb"] >= 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_takes_little_more_memory_than_the_data(tmp_path: Path) -> None:
    in_memory, mapped = run_memory_benchmark(tmp_path / "memory.csv", 200_000)
    assert len(_rows(tmp_path / "memory.csv")) == 2
    assert in_memory["peak_resident_mb"] < 1.15 * in_memory["array_mb"] + 200
    assert mapped["peak_anonymous_mb"] < in_memory["peak_anonymous_mb"] - 100


@pytest.mark.slow
def test_structure_models_are_measured_by_seconds(tmp_path: Path) -> None:
    data, env = maze_data()
    training, held_out = data.split(0.2)
    row = structure_seconds.measure("tuned", 0.3, training, held_out, env, 1)
    env.close()
    assert row["rows"] == 1024 * row["updates"] > 0
    assert 0.0 < row["nll_per_slot"] < 2.0
