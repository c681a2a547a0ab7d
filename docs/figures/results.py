"""Draws docs/figures/results.png: methods and their intervals on four kinds of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spin_d3rlpy.files.results import read_csv
from spin_envs import reference_scores

FOLDER = Path(__file__).parent
TABLES = FOLDER.parents[1] / "examples" / "paper" / "results"
NAMES = {"joint with search": "SPINIDQL", "F with search": "FactoredIDQL"}
COLORS = {
    "F": "#D55E00",
    "AR": "#CC79A7",
    "SAINT": "#E69F00",
    "SPIN": "#56B4E9",
    "SPINIDQL": "#0072B2",
    "FactoredIDQL": "#009E73",
}
COURIERS = "spin/dispatch-n20/medium-expert-v0"
MEDIOCRE = "spin/dispatch-n10/medium-v0"
MEDIOCRE_RETURN = 23.8  # mean return of its episodes


def _draw_intervals(axes: Axes, title: str, bars: dict[str, tuple[float, float, float]]) -> None:
    """Draws a line for each method: (value, low, high)."""
    for i, (method, (value, low, high)) in enumerate(reversed(bars.items())):
        color = COLORS[method]
        axes.plot([low, high], [i, i], color=color, linewidth=2)
        axes.plot(value, i, "o", color=color)
        axes.annotate(f"{value:.0f}", (value, i), (0, 6), textcoords="offset points", ha="center")
    axes.set_yticks(range(len(bars)), list(reversed(bars)))
    axes.set_ylim(-0.5, len(bars) - 0.3)
    axes.set_xlim(0, 110)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)


def _expert_return(dataset: str) -> float:
    scores = reference_scores(dataset)
    assert scores is not None
    return scores[1]


def _percent_of_expert(table: str, dataset: str) -> dict[str, tuple[float, float, float]]:
    expert = _expert_return(dataset)
    keys = ("greedy_return", "greedy_low", "greedy_high")
    bars: dict[str, Any] = {}
    for row in read_csv(TABLES / f"{table}.csv"):
        method = NAMES.get(row["method"], row["method"])
        if row["dataset"] == dataset and method in COLORS:
            bars[method] = tuple(100.0 * float(row[key]) / expert for key in keys)
    return {method: bars[method] for method in COLORS if method in bars}


def _scores(table: str, level: str) -> dict[str, tuple[float, float, float]]:
    keys = ("interquartile_mean_score", "low", "high")
    bars: dict[str, Any] = {
        NAMES.get(row["method"], row["method"]): tuple(float(row[key]) for key in keys)
        for row in read_csv(TABLES / f"{table}.csv")
        if (row["level"], row["actions"]) == (level, "greedy")
    }
    return {method: bars[method] for method in COLORS if method in bars}


def _draw_labels(axes: Axes, dataset: str) -> None:
    rows = read_csv(TABLES / "labels.csv")
    rows = [row for row in rows if row["dataset"] == f"spin/{dataset}-v0"]
    for method in ("F", "SAINT", "SPIN"):
        points = [
            (float(row["method"].split(", ")[1].rstrip("%")), row)
            for row in rows
            if row["method"].split(", ")[0] == method
        ]
        shares = [share for share, _ in points]
        value, low, high = (
            [float(row[key]) for _, row in points]
            for key in ("greedy_return", "greedy_low", "greedy_high")
        )
        axes.plot(shares, value, "o-", color=COLORS[method], label=method)
        axes.fill_between(shares, low, high, color=COLORS[method], alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("episodes with rewards (%)")
    axes.set_ylabel("greedy return")
    axes.set_title("few episodes with rewards\n(cheetah-run)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


figure = Figure(figsize=(13, 3.4), layout="constrained")
together, mediocre, mixed, labels = figure.subplots(1, 4)
title = "choices that must fit together\n(20 couriers, medium-expert)"
_draw_intervals(together, title, _percent_of_expert("coordination", COURIERS))
together.set_xlabel("% of the expert's return")
title = "mediocre data alone\n(10 couriers, medium)"
_draw_intervals(mediocre, title, _percent_of_expert("improvement_work", MEDIOCRE))
mediocre.axvline(100.0 * MEDIOCRE_RETURN / _expert_return(MEDIOCRE), color="0.4", linestyle=":")
mediocre.set_xlabel("% of the expert's return; dotted: data")
title = "mixed data of three robots\n(random-medium-expert)"
_draw_intervals(mixed, title, _scores("tuned_aggregate", "random-medium-expert"))
mixed.set_xlabel("interquartile mean score")
_draw_labels(labels, "cheetah-run-b3/random-medium-expert")
figure.savefig(FOLDER / "results.png", dpi=110)
