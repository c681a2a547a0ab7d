"""The table of shipped behavior policies and the picture of how they learned."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.behavior_policies.__main__ import app
from examples.behavior_policies.shipped import (
    learning_curve,
    learning_curves,
    policy_record,
    policy_rows,
)
from spin_envs.behavior import shipped_policies
from tests.subprocesses import ROOT


def test_table_has_a_row_for_each_policy_as_its_record_has_it(tmp_path: Path) -> None:
    out = tmp_path / "policies.csv"
    result = CliRunner().invoke(app, ["table", "--out", str(out)])
    assert result.exit_code == 0, result.output
    with out.open() as f:
        rows = {row["policy"]: row for row in csv.DictReader(f)}
    assert sorted(rows) == shipped_policies()
    record = policy_record("cheetah-run-b3-medium")
    row = rows["cheetah-run-b3-medium"]
    assert float(row["mean_return"]) == record["mean_return"]
    assert float(row["published_expert"]) == 664.57
    assert all(name in result.stdout for name in rows)


def test_committed_table_is_that_of_the_shipped_policies() -> None:
    with (ROOT / "examples" / "results" / "policies.csv").open() as f:
        committed = list(csv.DictReader(f))
    assert committed == [{k: str(v) for k, v in row.items()} for row in policy_rows()]


def test_tasks_come_by_number_and_levels_from_medium_on() -> None:
    names = [row["policy"] for row in policy_rows()]
    assert names.index("maze-a7-medium") + 1 == names.index("maze-a7-expert")
    assert names.index("maze-a7-expert") < names.index("maze-a10-medium")


def test_curves_are_those_beside_the_policies() -> None:
    curves, targets = learning_curves(["maze-a10", "cheetah-run-b3"])
    assert list(curves) == ["maze-a10", "cheetah-run-b3"]
    expected = learning_curve("cheetah-run-b3-expert")
    curve = curves["cheetah-run-b3"]["expert"]
    assert curve.steps.tolist() == expected[:, 0].tolist()
    assert curve.returns.tolist() == [expected[:, 1].tolist()]
    assert targets["cheetah-run-b3"] == {"target medium": 290.0, "target expert": 664.57}


def test_picture_is_drawn_of_the_tasks_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    command = ["plot", "maze-a10", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert out.read_text().count("<svg ") == 1


def test_a_task_without_policies_is_an_error_that_lists_those_with_some() -> None:
    with pytest.raises(ValueError, match=r"cheetah-run-b3.*got walker-walk-b3"):
        learning_curves(["walker-walk-b3"])
