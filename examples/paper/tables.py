"""Tables of finished jobs.

Scores of all runs and bootstrap intervals that resample seeds within each task: Agarwal et al.,
Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021. Their package,
rliable, wants as many seeds on every task, and statsmodels and seaborn, in place of forty lines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from examples.paper.catalog import PaperSettings
from examples.paper.grid import is_done
from examples.paper.job import RESULT, RUN, Job
from examples.paper.specs import Experiment
from spin_d3rlpy.data.minari.specs import parse_name
from spin_d3rlpy.files.results import read_csv
from spin_d3rlpy.runs.plots import Curve
from spin_envs import normalized_score

Row = dict[str, Any]
Values = NDArray[np.float64]
CurveRows = Sequence[Mapping[str, float]]
BASELINE = "F"  # whose final return is the target of the others (BASELINE_SHARE of it)
BASELINE_SHARE = 0.95
RESAMPLES = 2_000


@dataclasses.dataclass(frozen=True)
class Cell:
    """The finished jobs of one method on one dataset, one per seed."""

    dataset: str
    label: str  # of the method
    jobs: Sequence[Job]
    results: Sequence[Mapping[str, float]]
    evaluations: Sequence[CurveRows]  # learning curve of each job; empty for probes
    pretraining: Sequence[CurveRows] = ()  # of each job with an ASM, that one's curve

    @property
    def names(self) -> Row:
        return {"dataset": self.dataset, "method": self.label}

    def means(self, missing: Any = "", **digits: int | None) -> Row:
        """Means of results over seeds, rounded; `missing` where a job has none."""
        row: Row = {}
        for key, n in digits.items():
            values: Any = [result.get(key) for result in self.results]
            row[key] = missing if None in values else round(float(np.mean(values)), n)
        return row

    def finals(self, column: str) -> Values:
        """Final returns, `(seeds,)`: `"return"` (as the job evaluates) or `"greedy_return"`."""
        return np.array([result[column] for result in self.results])

    @property
    def returns(self) -> Values:
        return self.finals("return")

    def column(self, name: str) -> Values:
        """A column of the learning curves, `(seeds, T)`."""
        return np.array([[row.get(name, np.nan) for row in rows] for rows in self.evaluations])


def read_cells(experiment: str, root: Path, settings: PaperSettings) -> list[Cell]:
    """Reads the finished jobs of an experiment."""
    finished: dict[tuple[str, str], list[Job]] = {}
    for dataset, label, job in settings.cells(experiment):
        if is_done(root, job):
            finished.setdefault((dataset, label), []).append(job)
    return [
        Cell(
            dataset,
            label,
            jobs,
            [json.loads((root / job.name / RESULT).read_text()) for job in jobs],
            [_read_curve(root / job.name) for job in jobs if job.kind != "probe"],
            [_read_curve(root / job.asm.name) for job in jobs if job.asm is not None],
        )
        for (dataset, label), jobs in finished.items()
    ]


def _read_curve(folder: Path) -> list[dict[str, float]]:
    path = folder / RUN / "curve.csv"
    if not path.exists():  # an ASM that is used untrained
        return []
    # Losses are unknown before training.
    return [{k: float(v) for k, v in row.items() if v} for row in read_csv(path)]


def curves(cells: Sequence[Cell], column: str) -> dict[str, dict[str, Curve]]:
    """Returns by gradient steps, or by seconds if all jobs share these, by dataset and method.

    Greedy ones only of methods that are not evaluated greedily anyway.
    """
    by_dataset: dict[str, dict[str, Curve]] = {}
    for cell in cells:
        job = cell.jobs[0]
        if column == "return" or (job.mode != "greedy" and column in cell.evaluations[0][0]):
            x = cell.column("step" if job.seconds is None else "seconds").mean(0)
            by_dataset.setdefault(cell.dataset, {})[cell.label] = Curve(x, cell.column(column))
    return by_dataset


def curve_rows(cells: Sequence[Cell]) -> list[Row]:
    """Every evaluation of every seed."""
    digits = {"seconds": 2, "return": 2, "return_std": 2, "greedy_return": 2, "update_seconds": 1}
    return [
        {
            **cell.names,
            "seed": job.seed,
            "step": int(row["step"]),
            **{key: round(row[key], n) for key, n in digits.items() if key in row},
        }
        for cell in cells
        for job, rows in zip(cell.jobs, cell.evaluations, strict=True)
        for row in rows
    ]


def pretraining_rows(cells: Sequence[Cell]) -> list[Row]:
    """Every epoch of every ASM; a shared ASM belongs to the first method that uses it."""
    rows: list[Row] = []
    seen = set()
    for cell in cells:
        with_asm = [job for job in cell.jobs if job.asm is not None]
        for job, curve in zip(with_asm, cell.pretraining, strict=True):
            if job.asm is not None and job.asm.name not in seen:
                seen.add(job.asm.name)
                identity = {**cell.names, "seed": job.seed}
                rows += [identity | {key: round(row[key], 4) for key in row} for row in curve]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key, "") for key in columns} for row in rows]


def probe_rows(cells: Sequence[Cell]) -> list[Row]:
    """Accuracies of linear probes, means over seeds."""
    keys = ("slot", "exact", "independent", "uniform_slot", "uniform_exact")
    digits = dict.fromkeys(keys, 5)
    return [{**cell.names, "seeds": len(cell.jobs), **cell.means(**digits)} for cell in cells]


def return_rows(
    experiment: Experiment, cells: Sequence[Cell], final_of_baseline: Mapping[str, float]
) -> list[Row]:
    """Final returns with published figures, which may be percentages of the baseline's."""
    published = read_published(experiment.published)
    rows = []
    for cell in cells:
        returns = cell.returns
        mean = float(returns.mean())
        low, high = interval([returns])
        row: Row = {
            **cell.names,
            "seeds": len(returns),
            "return": round(mean, 1),
            "std": round(float(returns.std(ddof=1)), 1) if len(returns) > 1 else "",
            "low": round(low, 1),
            "high": round(high, 1),
            **cell.means(greedy_return=1),
        }
        if row["greedy_return"] != "":
            low, high = interval([cell.finals("greedy_return")])
            row |= {"greedy_low": round(low, 1), "greedy_high": round(high, 1)}
        known = published.get((cell.dataset, cell.label), "")
        if experiment.early:
            final = final_of_baseline.get(cell.dataset)
            row["percent_of_final_F"] = round(100.0 * mean / final, 1) if final else ""
            row["published_percent"] = known
        else:
            row["published"] = known
            row["difference"] = "" if isinstance(known, str) else round(mean - known, 1)
        rows.append(row)
    return rows


def mean_rows(cells: Sequence[Cell], x: str) -> list[Row]:
    """Greedy and sampled returns by `x`, seconds or gradient steps, means over seeds."""
    rows = []
    for cell in cells:
        places = cell.column(x).mean(0)
        greedy_returns, sampled_returns = (
            cell.column(name).mean(0) for name in ("greedy_return", "return")
        )
        for place, greedy, sampled in zip(places, greedy_returns, sampled_returns, strict=True):
            row: Row = {**cell.names, "seeds": len(cell.jobs), x: round(float(place))}
            rows.append(
                {**row, "greedy": round(float(greedy), 1), "sampled": round(float(sampled), 1)}
            )
    return rows


def coordination_rows(cells: Sequence[Cell]) -> list[Row]:
    """Collisions and decisions' times, means over seeds; none where they were not measured."""
    digits = {"greedy_collisions": 3, "sampled_collisions": 3, "milliseconds": 2}
    digits |= {"ruled_return": 1, "ruled_collisions": 3}
    return [
        {**cell.names, "seeds": len(cell.jobs), **cell.means(**digits)}
        for cell in cells
        if "greedy_collisions" in cell.results[0]
    ]


def cost_rows(cells: Sequence[Cell]) -> list[Row]:
    """Gradient steps, and seconds of each stage and of evaluation, means over seeds."""
    return [
        {
            **cell.names,
            "steps": cell.jobs[0].n_steps or cell.means(steps=None)["steps"],
            **cell.means(missing=0, pretraining_seconds=None, pretraining_samples=None),
            **(cell.means(cpu_seconds=1) if "cpu_seconds" in cell.results[0] else {}),
            **cell.means(update_seconds=1, evaluation_seconds=1),
        }
        for cell in cells
    ]


def final_returns_of_baseline(root: Path, settings: PaperSettings) -> dict[str, float]:
    """The factored method's final return by dataset, of finished full-length trainings."""
    cells = read_cells("returns", root, dataclasses.replace(settings, tasks=[], methods=[]))
    return {c.dataset: float(c.returns.mean()) for c in cells if c.label == BASELINE}


def target_rows(cells: Sequence[Cell]) -> list[Row]:
    """Steps and minutes to 95 % of the factored method's final return, pre-training included."""
    targets = {
        c.dataset: BASELINE_SHARE * float(c.returns.mean()) for c in cells if c.label == BASELINE
    }
    rows = []
    for cell in cells:
        if cell.dataset not in targets:
            continue
        target = targets[cell.dataset]
        steps, minutes = [], []
        for result, curve in zip(cell.results, cell.evaluations, strict=True):
            first = next((row for row in curve if row["return"] >= target), None)
            if first is None:
                continue
            steps.append(first["step"])
            seconds = result.get("pretraining_seconds", 0.0) + first["update_seconds"]
            minutes.append(seconds / 60.0)
        rows.append(
            {
                **cell.names,
                "target": round(target, 1),
                "reached": f"{len(steps)} of {len(cell.jobs)}",
                "median_steps": round(float(np.median(steps))) if steps else "",
                "median_minutes": round(float(np.median(minutes)), 1) if steps else "",
                "of_all_steps": cell.jobs[0].n_steps,
            }
        )
    return rows


def _mean(strata: Sequence[Values]) -> Values:
    mean: Values = np.concatenate(strata, -1).mean(-1)
    return mean


def interval(
    strata: Sequence[Values], statistic: Callable[[Sequence[Values]], Values] = _mean
) -> tuple[float, float]:
    """Returns a 95 % percentile bootstrap interval (low, high) of a statistic of the strata.

    Only values within a stratum are resampled.

    Args:
        strata: `(n,)` values of each stratum.
        statistic: of strata `(..., n)`, returns `(...)`; by default the mean of all values.
    """
    rng = np.random.default_rng(0)
    drawn = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for values in strata]
    low, high = np.quantile(statistic(drawn), (0.025, 0.975))
    return float(low), float(high)


def interquartile_mean(strata: Sequence[Values]) -> Values:
    """Mean of the middle half of all values; strata `(..., n)` to `(...)`."""
    mean: Values = stats.trim_mean(np.concatenate(strata, -1), 0.25, axis=-1)
    return mean


def probability_of_improvement(strata: Sequence[Values]) -> Values:
    """Probability that a run is better than one of the baseline, mean over tasks.

    Args:
        strata: the method's runs `(..., n)` of each task, then the baseline's of the same tasks.
            Equal runs count one half.
    """
    half = len(strata) // 2
    shares = [
        0.5 + 0.5 * np.sign(ours[..., :, None] - theirs[..., None, :]).mean((-2, -1))
        for ours, theirs in zip(strata[:half], strata[half:], strict=True)
    ]
    mean: Values = np.mean(shares, 0)
    return mean


def scores_by_method(cells: Sequence[Cell], column: str = "return") -> dict[str, list[Values]]:
    """Normalized final returns by method, an array per dataset that all methods have."""
    labels = dict.fromkeys(cell.label for cell in cells)
    by_dataset: dict[str, dict[str, Values]] = {}
    for cell in cells:
        by_dataset.setdefault(cell.dataset, {})[cell.label] = normalized_score(
            cell.dataset, cell.finals(column)
        )
    shared = [by_label for by_label in by_dataset.values() if set(by_label) == set(labels)]
    return {label: [by_label[label] for by_label in shared] for label in labels if shared}


def aggregate_rows(cells: Sequence[Cell]) -> list[Row]:
    """Interquartile means of normalized scores over datasets and seeds, and how often F is beaten.

    Over the datasets of each level, and over all of them (`"all"`) where there are several levels;
    greedy and sampled actions apart. A group without a dataset that all methods have gives no rows.
    """
    by_level: dict[str, list[Cell]] = {}
    for cell in cells:
        by_level.setdefault(parse_name(cell.dataset).level, []).append(cell)
    groups = by_level if len(by_level) == 1 else {**by_level, "all": list(cells)}
    return [
        {"level": level, **row}
        for level, group in groups.items()
        for actions, column in {"sampled": "return", "greedy": "greedy_return"}.items()
        for row in _aggregate_rows(scores_by_method(group, column), actions)
    ]


def _aggregate_rows(scores: Mapping[str, Sequence[Values]], actions: str) -> list[Row]:
    rows = []
    for label, strata in scores.items():
        low, high = interval(strata, interquartile_mean)
        row: Row = {
            "method": label,
            "actions": actions,
            "datasets": len(strata),
            "runs": sum(map(len, strata)),
            "interquartile_mean_score": round(float(interquartile_mean(strata)), 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "improvement": "",
            "improvement_low": "",
            "improvement_high": "",
        }
        if BASELINE in scores and label != BASELINE:
            both = [*strata, *scores[BASELINE]]
            low, high = interval(both, probability_of_improvement)
            row["improvement"] = round(float(probability_of_improvement(both)), 2)
            row["improvement_low"], row["improvement_high"] = round(low, 2), round(high, 2)
        rows.append(row)
    return rows


def read_published(file: str) -> dict[tuple[str, str], float]:
    """Returns published figures by (dataset, label); none without a file."""
    rows = read_csv(Path(__file__).with_name("published") / file) if file else []
    figures = {(row["dataset"], row["method"]): row.get("mean", row.get("percent")) for row in rows}
    return {key: float(value) for key, value in figures.items() if value}
