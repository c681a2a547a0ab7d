"""Rules of trust decide on trainings on record what they are known to decide."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from spin_d3rlpy.search import trust_bounds
from tests.measure import decisions

RESULTS = Path(__file__).parents[2] / "examples" / "results" / "switch"
TABLE, DECIDED = RESULTS / "new_logs.csv", RESULTS / "new_logs_decided.csv"
TABLES = {"new_logs": 76, "others": 12, "fifth_logs": 34}  # how many trainings they hold


@pytest.mark.parametrize("table", TABLES)
def test_a_rule_does_not_change_what_it_decides_unseen(table: str) -> None:
    """Whoever means to change it commits new decisions, and sees what each of them returned."""
    with (RESULTS / f"{table}_decided.csv").open() as lines:
        known = {(row["task"], row["seed"]): row["policy"] for row in csv.DictReader(lines)}
    assert len(known) == TABLES[table]
    trainings = decisions.trainings(RESULTS / f"{table}.csv")
    assert {(it.task, str(it.seed)): decisions.decide(it) for it in trainings} == known


def test_another_bound_decides_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [decisions.decide(training) for training in decisions.trainings(TABLE)]
    monkeypatch.setattr(trust_bounds, "LEAST_MODELED_GAIN", 1e30)  # no model decides alone
    after = [decisions.decide(training) for training in decisions.trainings(TABLE)]
    assert any(policy.startswith("search") for policy in before)
    assert before != after


def test_searches_are_tried_in_the_model_as_fit_does_it() -> None:
    """Of what it tried, the figures are those that it measured, and so is what acts."""
    tried = [it for it in decisions.trainings(TABLE) if it.trust.has_model]
    same = [decisions.compare_again(it).modeled == it.trust.modeled for it in tried]
    assert sum(same) > 0.7 * len(same)  # rules have changed since


def test_the_command_shows_each_decision(tmp_path: Path) -> None:
    out = tmp_path / "decided.csv"
    app = typer.Typer()
    app.command()(decisions.main)
    result = CliRunner().invoke(app, [str(TABLE), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text() == DECIDED.read_text()
    assert (
        "surely short of 90% of the way from the log to the best" in result.stdout.splitlines()[-1]
    )
