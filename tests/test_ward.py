"""The ward of `examples/treatment`: its values are exact, and its ten commands lead to the page."""

from __future__ import annotations

import csv
import functools
import importlib
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from spin_d3rlpy.cli import app
from spin_d3rlpy.data.loader import as_device_buffer
from spin_d3rlpy.data.tables.from_table import read_states
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.report import ReportSettings
from tests.cli.commands import spin_arguments
from tests.subprocesses import ROOT

FOLDER = ROOT / "examples" / "treatment"
PAGE = ROOT / "docs" / "how-to" / "hospital.md"
MODULES = ("ward", "doctors", "outcomes", "write_log", "rules")
# What makes a command short.
SHORT = {"--patients": "60"}
SMALLER = {
    "train": ["--recipe", "smoke", "--steps", "2", "--no-progress"],
    "report": ["--steps", "2", "--no-progress"],
    "treat_with.py": ["--patients", "5"],
}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's files can be imported, as when it is run; none of them stays imported."""
    monkeypatch.syspath_prepend(str(FOLDER))
    forget_modules()
    yield
    forget_modules()


def forget_modules() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def example() -> dict[str, Any]:
    """The example's modules by name."""
    return {name: importlib.import_module(name) for name in MODULES}


def test_the_best_policy_is_better_than_all_doctors(example: dict[str, Any]) -> None:
    ward, doctors = example["ward"], example["doctors"]
    values, best = ward.optimum()
    exact = [
        ward.at_admission(ward.policy_values(doctors.probabilities(d))) for d in doctors.HABITS
    ]
    assert 0.1 < min(exact) < max(exact) < 0.5
    assert 0.2 < np.mean(exact) < 0.4
    assert ward.at_admission(values) == pytest.approx(0.9, abs=0.02)
    greedy = (best[..., None] == np.arange(len(ward.ACTIONS))).astype(float)
    assert np.allclose(ward.policy_values(greedy), values, atol=1e-6)
    one = ward.policy_values(doctors.probabilities("Evans"))
    assert (one < values).all()


def test_values_are_those_of_a_simulation(example: dict[str, Any]) -> None:
    ward, doctors, outcomes = example["ward"], example["doctors"], example["outcomes"]
    for name in doctors.HABITS:
        rng, usual = np.random.default_rng(3), doctors.habit(name)
        table = doctors.treat(
            lambda _, s, __, usual=usual, rng=rng: doctors.draw(
                usual[s[:, 0], s[:, 1], s[:, 2] - 1], rng
            ),
            4_000,
            seed=3,
        )
        mean, error = outcomes.value(table)
        exact = ward.at_admission(ward.policy_values(doctors.probabilities(name)))
        assert abs(mean - exact) < 4 * error
        assert len(table["patient"]) < 4_000 * 15


def test_the_rule_is_the_wards_harmful_pairs(example: dict[str, Any]) -> None:
    ward, rules = example["ward"], example["rules"]
    actions = torch.as_tensor(ward.ACTIONS)
    kept = torch.ones(len(actions), dtype=torch.bool)
    for slot in range(len(ward.NVEC)):
        others = actions.clone()
        others[:, slot] = -1
        allowed = rules.no_harmful_pair(others)
        kept &= allowed[torch.arange(len(actions)), slot, actions[:, slot]]
    assert np.array_equal(kept.numpy(), ward.harmful_pairs(ward.ACTIONS) == 0)
    assert list(ward.DRUGS) == rules.DRUGS


def test_laboratory_values_are_missing_more_often_when_patients_are_steady(
    example: dict[str, Any],
) -> None:
    log = example["write_log"].ward_log(400, seed=0)
    first: dict[int, Any] = {}
    for i, x in zip(log["patient"], log["creatinine"], strict=True):
        first.setdefault(i, x)
    assert "" not in first.values()
    missing = np.array([x == "" for x in log["crp"]])
    assert 0.05 < missing.mean() < 0.4
    # What is measured is never that of a steady patient more often than not.
    levels = np.array([float(x) for x in log["crp"] if x != ""])
    steady = ((levels > 50) & (levels < 110)).sum()
    assert 0.4 < missing.sum() / (missing.sum() + steady) < 0.6


def test_a_policy_sees_the_last_known_values(example: dict[str, Any]) -> None:
    outcomes, write_log, doctors = (example[k] for k in ("outcomes", "write_log", "doctors"))
    data = outcomes.read_log(write_log.ward_log(100, seed=0))
    feature = data.preparation.features.index("creatinine")

    class Watcher:
        preparation = data.preparation
        seen: list[np.ndarray[Any, Any]] = []  # noqa: RUF012

        def predict(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            self.seen.append(rows)
            return np.zeros((len(rows), 6), np.int64)

    watcher = Watcher()
    table = doctors.treat(outcomes.PolicyAtWork(watcher), 20, seed=0)
    shown = np.concatenate([rows[:, feature] for rows in watcher.seen])
    assert len(shown) == len(table["creatinine"])
    last: dict[int, int] = {}
    for i, cell, value in zip(table["patient"], table["creatinine"], shown, strict=True):
        last[i] = cell if cell != "" else last[i]
        assert value == pytest.approx(last[i])


@pytest.mark.slow
def test_ten_commands_lead_from_installation_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    quick = functools.partial(ReportSettings, model_updates=4)
    monkeypatch.setattr("spin_d3rlpy.runs.report.ReportSettings", quick)
    lines = PAGE.read_text().split("```sh\n")[1].split("```")[0].splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("pip install")
    for line in lines[1:]:
        run_short(line, monkeypatch)
        forget_modules()

    assert as_device_buffer("ward/log-v0", [4, 3, 4, 3, 4, 3]).size() == 60
    page = (tmp_path / "runs" / "ward" / "report.html").read_text()
    assert "antibiotic" in page
    with (tmp_path / "choices.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    doses = {"none", "low", "medium", "high"}
    for drug in ("antibiotic", "steroid", "diuretic", "anticoagulant", "vasopressor", "sedative"):
        assert {row[drug] for row in rows} <= doses
    assert all(0.0 <= float(row["support"]) <= 1.0 for row in rows)
    assert {"value"} <= rows[0].keys()

    ward, rules = importlib.import_module("ward"), importlib.import_module("rules")
    algo: Any = open_policy("runs/ward").algorithm
    states = read_states("new.csv", algo.preparation)
    kept = algo.predict_with(states, allowed=rules.no_harmful_pair)
    assert not ward.harmful_pairs(kept).any()
    last = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split("  ")[0] for line in last] == [
        "the doctors",
        "the policy",
        "the best policy",
    ]


def run_short(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs one of the page's commands in this process, with a small budget."""
    words = shlex.split(line)
    for option, value in SHORT.items():
        if option in words:
            words[words.index(option) + 1] = value
    name = Path(words[1]).name
    if "--minutes" in words:  # steps instead
        at = words.index("--minutes")
        del words[at : at + 2]
    arguments = spin_arguments(shlex.join(words))
    if arguments is None:
        assert words[0] == "python", line
        monkeypatch.setattr(sys, "argv", [*words[1:], *SMALLER.get(name, [])])
        runpy.run_path(words[1], run_name="__main__")
        return
    result = CliRunner().invoke(app, [*arguments, *SMALLER.get(name, [])])
    assert result.exit_code == 0, result.output
