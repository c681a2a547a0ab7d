"""Tables and pictures of experiments beside published figures, in a file that opens offline."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from spin_d3rlpy.benchmark.experiments.grid import is_done
from spin_d3rlpy.benchmark.experiments.jobs import RESULT, Job
from spin_d3rlpy.benchmark.experiments.specs import EXPERIMENTS, Experiment, Scale
from spin_d3rlpy.plots import Curve, plot_curve_panels
from spin_d3rlpy.reports import write_csv

Row = dict[str, Any]
RESAMPLES = 2_000


def collect(
    experiment: Experiment,
    root: Path,
    scale: Scale,
    seeds: Sequence[int],
    device: str,
    tasks: Sequence[str] = (),
) -> tuple[list[Row], dict[str, dict[str, Curve]]]:
    """Reads finished jobs.

    Returns:
        One row per dataset and method (mean over seeds, standard deviation, interval), and the
        learning curves by dataset and method.
    """
    cells: dict[tuple[str, str], list[Job]] = {}
    for dataset, label, job in experiment.jobs(scale, seeds, device, tasks):
        if is_done(root, job):
            cells.setdefault((dataset, label), []).append(job)
    published = read_published(experiment.published)
    rows: list[Row] = []
    curves: dict[str, dict[str, Curve]] = {}
    for (dataset, label), jobs in cells.items():
        results = [json.loads((root / job.name / RESULT).read_text()) for job in jobs]
        row: Row = {"dataset": dataset, "method": label, "seeds": len(jobs)}
        if jobs[0].kind == "probe":
            for key in ("slot", "exact", "independent", "uniform_slot", "uniform_exact"):
                row[key] = round(float(np.mean([r[key] for r in results])), 5)
            rows.append(row)
            continue
        returns = np.array([r["return"] for r in results])
        low, high = interval(returns)
        row |= {
            "return": round(float(returns.mean()), 1),
            "std": round(float(returns.std(ddof=1)), 1) if len(returns) > 1 else "",
            "low": round(low, 1),
            "high": round(high, 1),
            "published": published.get((dataset, label), ""),
            "steps": jobs[0].n_steps,
        }
        for key in ("pretraining_seconds", "pretraining_samples"):
            row[key] = round(float(np.mean([r.get(key, 0.0) for r in results])))
        for key in ("update_seconds", "evaluation_seconds"):
            row[key] = round(float(np.mean([r[key] for r in results])), 1)
        rows.append(row)
        curves.setdefault(dataset, {})[label] = _read_curves([root / j.name for j in jobs])
    return rows, curves


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean over seeds; the values themselves if there is one."""
    if len(values) < 2 or np.ptp(values) == 0:
        return float(values.min()), float(values.max())
    result = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _read_curves(folders: Sequence[Path]) -> Curve:
    curves = []
    for folder in folders:
        with (folder / "curve.csv").open() as f:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]
        curves.append(rows)
    return Curve(
        np.array([row["step"] for row in curves[0]]),
        np.array([[row["return"] for row in rows] for rows in curves]),
    )


def read_published(file: str) -> dict[tuple[str, str], float]:
    """Returns published figures by (our dataset, our label), where a table has that form."""
    if not file:
        return {}
    text = (resources.files(__package__) / "published" / file).read_text()
    tasks = {
        "cheetah": "cheetah-run-b3",
        "finger": "finger-spin-b3",
        "humanoid": "humanoid-stand-b3",
        "quadruped": "quadruped-walk-b3",
    }
    only_level = "random-medium-expert" if file == "reprem.csv" else "medium-expert"
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        if "actuators" in row:
            task = f"maze-a{row['actuators']}"
        elif "bins" in row:
            task = f"dog-trot-b{row['bins']}"
        else:
            task = tasks.get(row["task"], row["task"])
        level = row.get("dataset", only_level)
        label = row["method"].split("-")[0] if row["method"] != "SPIN-Distill" else row["method"]
        value = row.get("mean", row.get("percent"))
        if value:
            found[f"spin/{task}/{level}-v0", label] = float(value)
    return found


def write_report(
    root: Path,
    out: Path,
    scale_name: str,
    scale: Scale,
    names: Sequence[str],
    seeds: Sequence[int],
    device: str,
    tasks: Sequence[str] = (),
) -> list[Path]:
    """Writes `report.html`, `report.md`, and a CSV and a PNG per experiment that has results.

    Args:
        root: folder of the jobs' folders.
        out: where the report goes.
        scale_name: name of the scale, for the text.
        scale: the scale.
        names: experiments.
        seeds: that are asked for; fewer are reported as such.
        device: as in d3rlpy.
        tasks: only datasets whose name contains one of these; all if empty.

    Returns:
        The files.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = []
    lines = [f"# Results at scale `{scale_name}`", "", _INTRODUCTION, ""]
    parts = [f"<h1>Results at scale <code>{scale_name}</code></h1><p>{_INTRODUCTION}</p>"]
    for name in names:
        experiment = EXPERIMENTS[name]
        rows, curves = collect(experiment, root, scale, seeds, device, tasks)
        if not rows:
            continue
        table = out / f"{name}.csv"
        write_csv(table, rows)
        files.append(table)
        lines += [f"## {experiment.title}", "", _markdown_table(rows), ""]
        parts.append(f"<h2>{html.escape(experiment.title)}</h2>{_html_table(rows)}")
        if curves:
            picture = out / f"{name}.png"
            plot_curve_panels(picture, curves)
            files.append(picture)
            encoded = base64.b64encode(picture.read_bytes()).decode()
            lines += [f"![{experiment.title}]({picture.name})", ""]
            parts.append(f'<img alt="{name}" src="data:image/png;base64,{encoded}">')
    for file, text in (
        (out / "report.md", "\n".join(lines)),
        (out / "report.html", _PAGE.format("\n".join(parts))),
    ):
        file.write_text(text)
        files.append(file)
    return files


_INTRODUCTION = (
    "Returns are means over seeds of the mean return of seeded evaluation episodes; low and high "
    "bound a 95 % bootstrap interval of that mean. Published figures are of the published sizes, "
    "steps and datasets, whose behavior policies were others: compare them with that in mind. For "
    "early adaptation they are percentages of the factored method's final return. Seconds are of "
    "this machine, steps are not."
)

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>spin-d3rlpy: results</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }}
th, td {{ padding: .15rem .6rem; border-bottom: 1px solid #ddd; text-align: right }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left }}
img {{ max-width: 100% }}
</style>
{}
</html>
"""


def _markdown_table(rows: Sequence[Row]) -> str:
    header = list(rows[0])
    lines = [header, ["---"] * len(header), *([str(row[k]) for k in header] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html_table(rows: Sequence[Row]) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{inner}</tr>"

    body = "".join(line(list(row.values()), "td") for row in rows)
    return f"<table>{line(list(rows[0]), 'th')}{body}</table>"
