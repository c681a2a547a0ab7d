"""Estimates by halves, limits, and the curve of what can be had of one reward for another."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory
from typer.testing import CliRunner

from spin_d3rlpy import SPINIDQL, from_table
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer, save_dataset
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.evaluation.halves import HalvesEstimate, Interval, estimate_by_halves
from spin_d3rlpy.evaluation.limits import Limit, limits_of
from spin_d3rlpy.evaluation.trade_off import (
    TradeOffPoint,
    measure_point,
    trace,
    weightings,
)
from spin_d3rlpy.runs.trade_off import parse_directions
from spin_d3rlpy.runs.trade_off_page import write_page

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")
NVEC = [3, 2]
DIRECTIONS = {"gain": 1.0, "harm": -1.0}


def log(n: int = 2000, seed: int = 0) -> DeviceReplayBuffer:
    """Single steps: each number of the first slot gains 1 and harms by its square, plus noise."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, NVEC, (n, 2))
    table: dict[Any, Any] = {"episode": np.arange(n), "x": rng.normal(size=n)}
    table |= {"a": actions[:, 0], "b": actions[:, 1]}
    table["gain"] = actions[:, 0] + 0.3 * rng.normal(size=n)
    table["harm"] = actions[:, 0] ** 2 / 4.0 + 0.3 * rng.normal(size=n)
    return from_table(
        table,
        observations=["x"],
        actions=["a", "b"],
        nvec=NVEC,
        episode="episode",
        terminal=True,
        rewards={"gain": "gain", "harm": "harm"},
        weights={"gain": 1.0, "harm": -1.0},
    )


def always(first: int) -> Any:
    return lambda states, _masks: np.tile([first, 0], (len(states), 1))


def test_each_reward_of_a_policy_is_estimated() -> None:
    first = 2
    found = estimate_by_halves(log(), always(first), n_steps=50)
    for name, true, logged in (("gain", first, 1.0), ("harm", first**2 / 4.0, 5.0 / 12.0)):
        estimate = found[name]
        assert estimate.is_answered
        assert estimate.value.value == pytest.approx(true, abs=0.15)
        assert estimate.value.low < estimate.value.value < estimate.value.high
        assert estimate.gain.value == pytest.approx(true - logged, abs=0.15)
        assert estimate.logged.low < logged < estimate.logged.high


def test_what_misses_the_log_s_own_return_is_no_answer() -> None:
    found = estimate_by_halves(log(200), always(1), n_steps=1)
    missing = dataclasses.replace(found["gain"], missed=0.4)
    assert not missing.is_answered
    assert "misses the log's own return by 0.4" in str(missing)
    assert not dataclasses.replace(missing, missed=float("nan")).is_answered


def test_too_few_episodes_are_refused() -> None:
    with pytest.raises(InvalidDatasetError, match=r"Expected 80 episodes or more.*got 60"):
        estimate_by_halves(log(60), always(1))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("complaints <= today", Limit("complaints", "<=", None)),
        ("complaints<=3.5", Limit("complaints", "<=", 3.5)),
        ("a b >= -2 per decision", Limit("a b", ">=", -2.0, per_decision=True)),
    ],
)
def test_limits_are_read(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    "text",
    ["complaints", "complaints < 3", "<= 3", "a <= nan", "a <= x", "a <= today per decision"],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a limit such as"):
        Limit.parse(text)


@pytest.mark.parametrize("constraint", [("<",), ("<=", True), ("<=", 1.0, "a day"), "today", 3])
def test_what_is_no_constraint_is_refused(constraint: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected a limit such as.*'harm'"):
        limits_of({"harm": constraint}, ["harm"])


def test_a_limit_of_an_unknown_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="rewards 'gain', 'harm', got one of 'harms'"):
        limits_of({"harms": ("<=", "today")}, ["gain", "harm"])


def estimated(value: float, width: float, logged: float = 1.0) -> HalvesEstimate:
    def around(x: float) -> Interval:
        return Interval(x, x - width, x + width)

    return HalvesEstimate(around(value), around(value - logged), around(logged), 0.0, 0.1)


def test_a_limit_is_kept_by_the_far_end() -> None:
    estimate = estimated(2.0, 0.5)
    assert Limit("r", "<=", 2.6).is_kept(estimate, 1.0)
    assert not Limit("r", "<=", 2.4).is_kept(estimate, 1.0)
    assert Limit("r", ">=", 1.4).is_kept(estimate, 1.0)
    assert not Limit("r", ">=", 1.6).is_kept(estimate, 1.0)
    assert Limit("r", "<=", 0.26, per_decision=True).is_kept(estimate, 10.0)
    assert not Limit("r", "<=", 0.26, per_decision=True).is_kept(estimate, 9.0)
    assert Limit("r", "<=", None).is_kept(estimated(0.4, 0.5), 1.0)
    assert not Limit("r", "<=", None).is_kept(estimated(0.6, 0.5), 1.0)
    unclear = dataclasses.replace(estimate, missed=1.0)
    assert not Limit("r", "<=", 9.0).is_kept(unclear, 1.0)


def test_weightings_are_spread_evenly_in_what_returns_differ_by() -> None:
    data = log()
    spread = {name: float(data.with_weights({name: 1.0}).returns().std()) for name in DIRECTIONS}
    found = weightings(data, DIRECTIONS, 5)
    of_gain = [weights["gain"] * spread["gain"] for weights in found]
    of_harm = [-weights["harm"] * spread["harm"] for weights in found]
    assert np.allclose(of_gain, [1.0, 0.75, 0.5, 0.25, 0.0])
    assert np.allclose(of_harm, [0.0, 0.25, 0.5, 0.75, 1.0])
    assert all(w["gain"] >= 0.0 >= w["harm"] for w in found)


class Curve:
    """A measurement whose policies return more of both rewards, the more `gain` weighs."""

    def __init__(self, width: float = 0.05) -> None:
        self.width = width
        self.tried: list[float] = []

    def __call__(self, weights: dict[str, float]) -> TradeOffPoint:
        share = weights["gain"] / (weights["gain"] - weights["harm"])
        self.tried.append(share)
        estimates = {"gain": estimated(share, self.width), "harm": estimated(2 * share, self.width)}
        return TradeOffPoint(weights, estimates, "search")


def traced(measure: Any, constraints: Any) -> Any:
    algo = SPINIDQL(recipe="tuned")
    return trace(measure, algo, log(), DIRECTIONS, constraints, n=6, show_progress=False)


def test_the_best_that_keeps_a_limit_is_delivered() -> None:
    curve = traced(Curve(), {"harm": ("<=", 1.0)})
    assert curve.delivered is not None
    assert curve.kept[curve.delivered]
    chosen = curve.points[curve.delivered]
    assert 0.8 < chosen.estimates["harm"].value.value <= 0.95
    best = max(
        p.estimates["gain"].value.value
        for p, kept in zip(curve.points, curve.kept, strict=True)
        if kept
    )
    assert chosen.estimates["gain"].value.value == best
    assert "It surely keeps harm <= 1." in str(curve)


def test_a_delivered_policy_that_is_worse_than_who_logged_says_so(tmp_path: Path) -> None:
    curve = traced(Curve(), {"harm": ("<=", 1.0)})  # the log returns 1 of both
    assert curve.worse_by == ["gain"]
    assert str(curve).endswith("By gain the log is surely better.")
    write_page(curve, tmp_path / "page.html", "the log", log(), 1.0, 0.9)
    assert "By gain the log is surely better." in (tmp_path / "page.html").read_text()
    less_is_better = dataclasses.replace(curve, directions={"gain": -1.0, "harm": -1.0})
    assert less_is_better.worse_by == []


def test_nothing_is_delivered_that_does_not_surely_keep_the_limit() -> None:
    curve = traced(Curve(width=3.0), {"harm": ("<=", 1.0)})
    assert curve.delivered is None
    assert "No policy surely keeps harm <= 1" in str(curve)


def test_a_point_behind_one_that_breaks_the_limit_is_not_delivered() -> None:
    class Lucky(Curve):
        def __call__(self, weights: dict[str, float]) -> TradeOffPoint:
            point = super().__call__(weights)
            if self.tried[-1] > 0.95:  # by luck
                return dataclasses.replace(
                    point, estimates={**point.estimates, "harm": estimated(0.1, 0.01)}
                )
            return point

    curve = traced(Lucky(), {"harm": ("<=", 1.0)})
    assert curve.kept[-1]
    assert curve.delivered is not None
    assert curve.points[curve.delivered].estimates["gain"].value.value < 0.5


def test_dominated_points_are_told() -> None:
    class Bent(Curve):
        def __call__(self, weights: dict[str, float]) -> TradeOffPoint:
            point = super().__call__(weights)
            bad = 0.3 < self.tried[-1] < 0.5
            harm = estimated(5.0, 0.1) if bad else point.estimates["harm"]
            return dataclasses.replace(point, estimates={**point.estimates, "harm": harm})

    curve = traced(Bent(), {"harm": ("<=", 9.0)})
    assert sum(curve.dominated) == 1


@pytest.mark.parametrize(
    "text", ["revenue", "revenue,", "revenue,revenue", "revenue,-revenue", ",-x", ""]
)
def test_directions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Expected two rewards or more"):
        parse_directions(text)
    assert parse_directions("a b, -c,+d") == {"a b": 1.0, "c": -1.0, "d": 1.0}


@pytest.mark.slow
def test_a_weighting_s_policy_is_measured() -> None:
    algo = SPINIDQL(recipe="tuned")
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(log(), seconds=0.5, clock="ops", **quiet)
    point = measure_point(algo, log(seed=1), {"gain": 0.0, "harm": -1.0}, n_steps=40)
    assert point.acts_by == "search"
    assert point.weights == {"gain": 0.0, "harm": -1.0}
    assert point.estimates["harm"].gain.value < -0.1


@pytest.fixture(scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A dataset of which 90 episodes are held out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        save_dataset(log(300), "shop/log-v0")
        yield


@pytest.mark.usefixtures("_shop")
def test_the_command_writes_page_curve_and_policy_and_resumes(tmp_path: Path) -> None:
    command = ["tradeoff", "shop/log-v0", "--rewards", "gain,-harm", "--limit", "harm <= 2"]
    command += ["--seconds", "1", "--points", "3", "--steps", "10", "--out", str(tmp_path / "out")]
    command += ["--no-progress", "--json", "--clock", "ops"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    page = Path(found["page"]).read_text()
    assert "gain against harm" in page
    assert 'alt="Estimated returns of' in page
    assert len(found["rows"]) >= 3
    again = json.loads(CliRunner().invoke(app, command).stdout)
    assert again == found
    if found["is_kept"]:
        assert Path(found["policy"]).exists()
    other = CliRunner().invoke(app, [*command, "--seed", "1"])
    assert isinstance(other.exception, ValueError)
    assert "holds a curve with seed=0, expected 1" in str(other.exception)


@pytest.mark.usefixtures("_shop")
def test_a_log_of_few_episodes_is_refused_before_the_training(tmp_path: Path) -> None:
    save_dataset(log(90), "shop/small-v0")
    command = [
        "tradeoff",
        "shop/small-v0",
        "--rewards",
        "gain,-harm",
        "--out",
        str(tmp_path / "out"),
    ]
    error = CliRunner().invoke(app, command).exception
    assert "Expected 80 episodes or more to estimate from, got 27" in str(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_shop")
def test_a_log_without_these_rewards_is_refused(tmp_path: Path) -> None:
    for rewards, message in (("gain,-harms", "got 'harms'"), ("gain", "two rewards or more")):
        command = ["tradeoff", "shop/log-v0", "--rewards", rewards, "--out", str(tmp_path / "out")]
        error = CliRunner().invoke(app, command).exception
        assert message in str(error)
        assert not (tmp_path / "out").exists()
