"""The command for a GPU's first minutes, tiny and on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spin_d3rlpy.files.results import read_csv
from tests.measure import first_gpu
from tests.measure.first_gpu import PARTS, Session, run_first_gpu


@pytest.mark.slow
def test_every_part_leaves_its_result_and_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    out = tmp_path / "gpu"
    run_first_gpu(Session(out, "cpu:0", 60.0, is_tiny=True, size=1000))
    results = {name: json.loads((out / f"{name}.json").read_text())["result"] for name in PARTS}
    assert [name for name, result in results.items() if "error" in result] == []
    for name in ("equality", "graphs"):
        assert [row["ok"] for row in results[name]] == [True, True]
        assert len(read_csv(out / f"{name}.csv")) == 2
    assert results["tests"]["ok"]
    assert [row["step"] for row in results["speed"]] == ["FactoredIQL", "SPINIQL, cached features"]
    assert all(row["float32_steps_per_second"] > 0 for row in results["speed"])
    assert [float(row["bfloat16_recorded_ms"]) > 0 for row in results["recorded"]] == [True]
    assert results["utilization"]["steps_per_second"] > 0
    assert results["training"]["steps"] > 0
    assert (out / "spin_curve.csv").exists()
    assert (out / "machine.json").exists()

    def again(_session: Session) -> None:
        raise AssertionError

    monkeypatch.setattr(first_gpu, "PARTS", dict.fromkeys(PARTS, again))
    session = Session(out, "cpu:0", 60.0, is_tiny=True)
    assert session.spent > 1.0  # of the first process
    run_first_gpu(session)


def test_an_error_of_one_part_is_a_result(tmp_path: Path) -> None:
    def broken(_session: Session) -> None:
        raise RuntimeError("no kernel image")

    session = Session(tmp_path, "cpu:0", 60.0)
    session.do("part", broken)
    found = json.loads((tmp_path / "part.json").read_text())["result"]
    assert found == {"error": "RuntimeError: no kernel image"}
    assert "no kernel image" in (tmp_path / "log.txt").read_text()
