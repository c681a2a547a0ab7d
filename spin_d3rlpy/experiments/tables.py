"""Tables of finished jobs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.experiments.catalog import EXPERIMENTS
from spin_d3rlpy.experiments.grid import is_done
from spin_d3rlpy.experiments.jobs import RESULT, RUN, Job
from spin_d3rlpy.experiments.specs import Experiment, Scale
from spin_d3rlpy.experiments.statistics import Values, interquartile_mean, interval
from spin_d3rlpy.plots import Curve
from spin_d3rlpy.reports import read_csv
from spin_envs import UnknownTaskError, normalized_score

Row = dict[str, Any]
BASELINE = "F"  # whose final return is the target of the others (BASELINE_SHARE of it)
BASELINE_SHARE = 0.95


@dataclasses.dataclass(frozen=True)
class Cell:
    """The finished jobs of one method on one dataset."""

    dataset: str
    label: str  # of the method
    jobs: Sequence[Job]  # one per seed
    results: Sequence[Mapping[str, float]]
    # of each job, the rows of its learning curve; empty for probes
    evaluations: Sequence[Sequence[Mapping[str, float]]]
    # of each job with an ASM, the rows of that one's curve
    pretraining: Sequence[Sequence[Mapping[str, float]]] = ()

    @property
    def names(self) -> Row:
        """The first columns of its row."""
        return {"dataset": self.dataset, "method": self.label}

    def mean(
        self, key: str, digits: int | None = None, default: float | None = None
    ) -> float | str:
        """Mean of a result over seeds; "" if a job (of an earlier version) lacks it."""
        values = [result.get(key, default) for result in self.results]
        if None in values:
            return ""
        return round(float(np.mean(np.array(values, np.float64))), digits)

    @property
    def returns(self) -> Values:
        """Final return of each job."""
        return np.array([result["return"] for result in self.results])

    @property
    def curve(self) -> Curve:
        """Returns by gradient steps, or by seconds if all jobs share these."""
        return self._curve("return")

    @property
    def greedy_curve(self) -> Curve | None:
        """Returns of greedy actions; None if `curve` has them or none were measured."""
        if self.jobs[0].mode == "greedy" or "greedy_return" not in self.evaluations[0][0]:
            return None
        return self._curve("greedy_return")

    def _curve(self, column: str) -> Curve:
        by = "step" if self.jobs[0].seconds is None else "seconds"
        return Curve(
            np.mean([[row[by] for row in rows] for rows in self.evaluations], axis=0),
            np.array([[row[column] for row in rows] for rows in self.evaluations]),
        )

    @property
    def scores(self) -> Values | None:
        """Normalized final returns (0 random, 100 expert); None without reference scores."""
        try:
            return np.array([normalized_score(self.dataset, x) for x in self.returns])
        except UnknownTaskError:
            return None

    def to_target(self, target: float) -> list[tuple[int, float] | None]:
        """Steps and minutes of each job to the first evaluation that reaches a return.

        Minutes are those of pre-training and updates; None if not reached.
        """
        found: list[tuple[int, float] | None] = []
        for result, rows in zip(self.results, self.evaluations, strict=True):
            row = next((row for row in rows if row["return"] >= target), None)
            if row is None:
                found.append(None)
                continue
            seconds = result.get("pretraining_seconds", 0.0) + row["update_seconds"]
            found.append((int(row["step"]), seconds / 60.0))
        return found


def read_cells(
    experiment: Experiment,
    root: Path,
    scale: Scale,
    seeds: Sequence[int],
    device: str,
    tasks: Sequence[str] = (),
) -> list[Cell]:
    """Reads the finished jobs of an experiment."""
    finished: dict[tuple[str, str], list[Job]] = {}
    for dataset, label, job in experiment.jobs(scale, seeds, device, tasks):
        if is_done(root, job):
            finished.setdefault((dataset, label), []).append(job)
    return [
        Cell(
            dataset,
            label,
            jobs,
            [json.loads((root / job.name / RESULT).read_text()) for job in jobs],
            [_read_curve(root / job.name) for job in jobs if job.kind == "train"],
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


def curve_rows(cells: Sequence[Cell]) -> list[Row]:
    """Every evaluation of every seed."""
    return [
        {
            **cell.names,
            "seed": job.seed,
            "step": int(row["step"]),
            **{
                key: round(row[key], 2)
                for key in ("seconds", "return", "greedy_return")
                if key in row
            },
            "update_seconds": round(row["update_seconds"], 1),
        }
        for cell in cells
        for job, rows in zip(cell.jobs, cell.evaluations, strict=True)
        for row in rows
    ]


def step_rows(cells: Sequence[Cell], steps: Sequence[int] = (0, 1_000, 10_000)) -> list[Row]:
    """Sampled and greedy returns by gradient steps, means over seeds."""
    rows = []
    for cell in cells:
        row: Row = {**cell.names, "seeds": len(cell.jobs)}
        for key, name in (("return", "sampled"), ("greedy_return", "greedy")):
            for step in steps:
                found = [
                    e.get(key) for curve in cell.evaluations for e in curve if e["step"] == step
                ]
                values = [value for value in found if value is not None]
                complete = len(values) == len(cell.jobs)
                row[f"{name}_at_{step}"] = round(float(np.mean(values)), 1) if complete else ""
        rows.append(row)
    return rows


def pretraining_rows(cells: Sequence[Cell]) -> list[Row]:
    """Every epoch of every ASM; a shared ASM belongs to the first method that uses it."""
    rows: list[Row] = []
    seen = set()
    for cell in cells:
        with_asm = [job for job in cell.jobs if job.asm is not None]
        for job, curve in zip(with_asm, cell.pretraining, strict=True):
            assert job.asm is not None
            if job.asm.name in seen:
                continue
            seen.add(job.asm.name)
            identity = {**cell.names, "seed": job.seed}
            rows += [identity | {key: round(row[key], 4) for key in row} for row in curve]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key, "") for key in columns} for row in rows]


def held_out_accuracies(rows: Sequence[Row]) -> dict[str, dict[str, Curve]]:
    """Per-slot held-out accuracy by updates: curves by dataset and line (method, mask ratio)."""
    prefix = "validation_slot_accuracy_at_"
    found: dict[str, dict[str, dict[int, list[tuple[float, float]]]]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(prefix) and value != "":
                line = f"{row['method']}: {float(key.removeprefix(prefix)):.0%} masked"
                by_seed = found.setdefault(row["dataset"], {}).setdefault(line, {})
                by_seed.setdefault(row["seed"], []).append((row["step"], value))
    return {
        dataset: {
            line: Curve(
                np.array([step for step, _ in next(iter(by_seed.values()))]),
                np.array([[value for _, value in curve] for curve in by_seed.values()]),
            )
            for line, by_seed in lines.items()
        }
        for dataset, lines in found.items()
    }


def probe_rows(cells: Sequence[Cell]) -> list[Row]:
    """Accuracies of linear probes, means over seeds."""
    keys = ("slot", "exact", "independent", "uniform_slot", "uniform_exact")
    return [
        {**cell.names, "seeds": len(cell.jobs), **{key: cell.mean(key, 5) for key in keys}}
        for cell in cells
    ]


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
            "greedy_return": cell.mean("greedy_return", 1),
        }
        known = published.get((cell.dataset, cell.label))
        if experiment.early:
            final = final_of_baseline.get(cell.dataset)
            row["percent_of_final_F"] = round(100.0 * mean / final, 1) if final else ""
            row["published_percent"] = "" if known is None else known
        else:
            row["published"] = "" if known is None else known
            row["difference"] = "" if known is None else round(mean - known, 1)
        rows.append(row)
    return rows


def second_rows(cells: Sequence[Cell]) -> list[Row]:
    """Greedy and sampled returns by seconds of training, means over seeds."""
    return [
        {
            **cell.names,
            "seeds": len(cell.jobs),
            "seconds": round(float(np.mean([row["seconds"] for row in rows]))),
            "greedy": round(float(np.mean([row["greedy_return"] for row in rows])), 1),
            "sampled": round(float(np.mean([row["return"] for row in rows])), 1),
        }
        for cell in cells
        for rows in zip(*cell.evaluations, strict=True)
    ]


def coordination_rows(cells: Sequence[Cell]) -> list[Row]:
    """Collisions and decisions' times, means over seeds; none where they were not measured."""
    keys = {"greedy_collisions": 3, "sampled_collisions": 3, "milliseconds": 2}
    keys |= {"ruled_return": 1, "ruled_collisions": 3}
    return [
        {**cell.names, "seeds": len(cell.jobs), **{k: cell.mean(k, d) for k, d in keys.items()}}
        for cell in cells
        if "greedy_collisions" in cell.results[0]
    ]


def cost_rows(cells: Sequence[Cell]) -> list[Row]:
    """Gradient steps, and seconds of each stage and of evaluation, means over seeds."""
    return [
        {
            **cell.names,
            "steps": cell.jobs[0].n_steps or cell.mean("steps"),
            "pretraining_seconds": cell.mean("pretraining_seconds", default=0.0),
            "pretraining_samples": cell.mean("pretraining_samples", default=0.0),
            "update_seconds": cell.mean("update_seconds", 1),
            "evaluation_seconds": cell.mean("evaluation_seconds", 1),
        }
        for cell in cells
    ]


def final_returns_of_baseline(
    root: Path, scale: Scale, seeds: Sequence[int], device: str
) -> dict[str, float]:
    """The factored method's final return by dataset, of finished full-length trainings."""
    cells = read_cells(EXPERIMENTS["returns"], root, scale, seeds, device)
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
        times = cell.to_target(targets[cell.dataset])
        reached = [time for time in times if time is not None]
        steps, minutes = zip(*reached, strict=True) if reached else ((), ())
        rows.append(
            {
                **cell.names,
                "target": round(targets[cell.dataset], 1),
                "reached": f"{len(reached)} of {len(times)}",
                "median_steps": round(float(np.median(steps))) if reached else "",
                "median_minutes": round(float(np.median(minutes)), 1) if reached else "",
                "of_all_steps": cell.jobs[0].n_steps,
            }
        )
    return rows


def scores_by_method(cells: Sequence[Cell]) -> dict[str, list[Values]]:
    """Normalized final returns by method, an array per dataset that all methods have."""
    labels = list(dict.fromkeys(cell.label for cell in cells))
    found: dict[str, dict[str, Values]] = {}
    for cell in cells:
        scores = cell.scores
        if scores is not None:
            found.setdefault(cell.dataset, {})[cell.label] = scores
    shared = [by_label for by_label in found.values() if set(by_label) == set(labels)]
    return {label: [by_label[label] for by_label in shared] for label in labels if shared}


def aggregate_rows(scores: Mapping[str, Sequence[Values]]) -> list[Row]:
    """Interquartile means of normalized scores over datasets and seeds."""
    rows = []
    for label, strata in scores.items():
        low, high = interval(strata, interquartile_mean)
        values = np.concatenate(strata)
        rows.append(
            {
                "method": label,
                "datasets": len(strata),
                "runs": len(values),
                "interquartile_mean_score": round(interquartile_mean(values), 1),
                "low": round(low, 1),
                "high": round(high, 1),
            }
        )
    return rows


def read_published(file: str) -> dict[tuple[str, str], float]:
    """Returns published figures by (dataset, label); none without a file."""
    if not file:
        return {}
    text = (resources.files(__package__) / "published" / file).read_text()
    figures = {
        (row["dataset"], row["method"]): row.get("mean", row.get("percent"))
        for row in csv.DictReader(io.StringIO(text))
    }
    return {key: float(value) for key, value in figures.items() if value}
