"""Tables and figures of experiments with published figures, in one offline HTML file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.paper import tables
from examples.paper.catalog import EXPERIMENTS, PaperSettings
from examples.paper.settings import outdated
from examples.paper.specs import SCALES, Experiment
from examples.paper.tables import Cell, Row
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.runs import plots
from spin_d3rlpy.runs.page import Page

Panels = Mapping[str, Mapping[str, plots.Curve]]


def write_report(root: Path, out: Path, settings: PaperSettings) -> list[Path]:
    """Writes `report.html` and, per experiment with results, a CSV and a PNG; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    preset = dataclasses.asdict(SCALES[settings.preset])
    # Tables show the number of seeds.
    changes = [f"{k}={v}" for k, v in settings.scale.items() if v != preset[k] and k != "seeds"]
    title = ", ".join([f"Results at scale {settings.preset}", *changes])
    writer = _Writer(out, title, _INTRODUCTION)
    if old := outdated(root, settings.jobs()):
        differing = ", ".join(sorted(set(itertools.chain(*old.values()))))
        writer.warning(
            f"{len(old)} runs were made by other values of their recipe ({differing}): "
            f"{', '.join(old)}."
        )
    baseline = tables.final_returns_of_baseline(root, settings)
    for name in settings.experiments:
        if cells := tables.read_cells(name, root, settings):
            _report_experiment(writer, EXPERIMENTS[name], cells, baseline)
    return writer.finish()


def _report_experiment(
    writer: _Writer, experiment: Experiment, cells: Sequence[Cell], baseline: dict[str, float]
) -> None:
    name = experiment.name
    writer.paragraph(experiment.title, "h2")
    writer.paragraph(experiment.note)
    if experiment.probe:
        writer.table(name, tables.probe_rows(cells))
        return
    rows = tables.return_rows(experiment, cells, baseline)
    writer.table(name, rows)
    ends: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("published", "") != "":
            ends.setdefault(row["dataset"], {})[f"published {row['method']}"] = row["published"]
    xlabel = plots.OFFLINE_STEPS
    if experiment.timed:
        kind = {"cpu": "CPU seconds", "ops": "nominal seconds of work"}[cells[0].jobs[0].clock]
        xlabel = f"{kind}, pre-training included"
    curves = tables.curves(cells, "return")
    writer.curves(name, "learning curves", curves, reference_lines=ends, xlabel=xlabel)
    if greedy := tables.curves(cells, "greedy_return"):
        writer.paragraph("The same policies with greedy actions:")
        text = "learning curves of greedy actions"
        ylabel = "mean return of greedy episodes"
        writer.curves(f"{name}_greedy", text, greedy, ylabel=ylabel, xlabel=xlabel)
    writer.data(f"{name}_curves", tables.curve_rows(cells))
    text = "Cost: means over seeds, on the machine of the run."
    writer.table(f"{name}_cost", tables.cost_rows(cells), text)
    if experiment.timed:
        text = "Means over seeds by seconds of training, greedy and sampled."
        writer.table(f"{name}_by_second", tables.mean_rows(cells, "seconds"), text)
        if all(job.reward is None for cell in cells for job in cell.jobs):  # else not comparable
            _report_aggregate(writer, name, cells)
        text = (
            "Shares of actions with a collision, and the time of a decision. The structure model's "
            "ruled actions must not collide, which it was not trained for."
        )
        writer.table(f"{name}_collisions", tables.coordination_rows(cells), text)
        return
    if experiment.early:
        writer.data(f"{name}_by_step", tables.mean_rows(cells, "step"))
    if pretraining := tables.pretraining_rows(cells):
        writer.data(f"{name}_pretraining", pretraining)
    if targets := tables.target_rows(cells):
        text = (
            "Steps and minutes to 95 % of the factored method's final return in this table, "
            "pre-training included in the minutes; medians of the seeds that reach it."
        )
        writer.table(f"{name}_time_to_target", targets, text)
    _report_aggregate(writer, name, cells)


def _report_aggregate(writer: _Writer, name: str, cells: Sequence[Cell]) -> None:
    text = (
        "Normalized scores (0 random, 100 expert) over the datasets of a level that all methods "
        "have, and over all: "
        "interquartile mean, and improvement, the probability that a run is better than one of F "
        "on the same dataset; with 95 % intervals."
    )
    writer.table(f"{name}_aggregate", tables.aggregate_rows(cells), text)


class _Writer:
    """Writes a report as one HTML file, its tables also as CSV."""

    def __init__(self, out: Path, title: str, introduction: str) -> None:
        self._out = out
        self._files: list[Path] = []
        self._page = Page(title, introduction)

    def paragraph(self, text: str, tag: str = "p") -> None:
        self._page.paragraph(text, tag)

    def warning(self, text: str) -> None:
        self._page.warning(text)

    def data(self, name: str, rows: Sequence[Row]) -> None:
        """Adds a CSV file that is too long for a table."""
        path = self._out / f"{name}.csv"
        write_csv(path, rows)
        self._files.append(path)

    def table(self, name: str, rows: Sequence[Row], text: str = "") -> None:
        """Adds a table after a text, unless it has no rows; datasets by short name."""
        if not rows:
            return
        self.paragraph(text)
        self.data(name, rows)
        self._page.table([{key: _short(value) for key, value in row.items()} for row in rows])

    def curves(self, name: str, alternative: str, panels: Panels, **options: Any) -> None:
        path = self._out / f"{name}.png"
        plots.plot_curve_panels(path, panels, **options)
        self._page.picture(path, alternative)
        self._files.append(path)

    def finish(self) -> list[Path]:
        page = self._out / "report.html"
        self._page.write(page)
        return [*self._files, page]


def _short(value: object) -> object:
    return plots.short_name(value) if isinstance(value, str) else value


_INTRODUCTION = (
    "Returns are means over seeds of the mean return of seeded evaluation episodes; low and high "
    "bound a 95 % bootstrap interval of that mean. As published, actions of IQL and AWAC are "
    "sampled; greedy_return is that of the most likely actions. Published figures are of the "
    "published sizes, steps and datasets, from other behavior policies. Seconds depend on this "
    "machine, steps do not."
)
