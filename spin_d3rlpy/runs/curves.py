"""Learning curves read from training and pre-training folders, over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from spin_d3rlpy.errors import InvalidDatasetError, require_one_of
from spin_d3rlpy.files.results import read_csv
from spin_d3rlpy.files.yaml_settings import read_settings
from spin_d3rlpy.runs.plots import Curve
from spin_d3rlpy.runs.training import CONFIG, CURVE

X = Literal["step", "seconds"]
# What runs of one line may differ in.
_NOT_METHOD = ("seed", "device", "n_steps", "checkpoint_interval")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Returns the folders with a learning curve in or below these, or raises FileNotFoundError."""
    runs = {
        path.parent
        for folder in folders
        for path in folder.rglob(CURVE)
        if (path.parent / CONFIG).exists()
    }
    if not runs:
        raise FileNotFoundError(
            f"There is no {CURVE} of a training in {', '.join(map(str, folders))}. Expected "
            "folders of `spin-d3rlpy train`."
        )
    return sorted(runs)


def read_curves(
    runs: Sequence[Path], metric: str = "return", x: X = "step"
) -> dict[str, dict[str, Curve]]:
    """Reads learning curves by dataset and label; runs that differ only in their seed are one line.

    The label is the algorithm and, if needed, the settings that distinguish lines. A line is as
    long as its shortest seed.

    Args:
        runs: their folders.
        metric: column of `curve.csv`.
        x: gradient steps, or seconds of training, stages before it included and evaluations not.
            Seeds take different times to a step: a point of their line stands at the mean.

    Raises:
        InvalidDatasetError: no run has the metric, or one that has it lacks `x`.
        ValueError: another `x`.
    """
    require_one_of("x", x, X)
    groups: dict[str, dict[str, list[Any]]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        rows = read_csv(run / CURVE)
        if not rows or metric not in rows[0]:
            continue
        if x not in rows[0]:
            raise InvalidDatasetError(
                f"{run / CURVE} has no column {x!r}. Draw it by another one (on the command line: "
                "--x step)."
            )
        rows = [row for row in rows if row[metric]]  # losses are unknown before training
        settings_of_run = _flatten(read_settings(run / CONFIG))
        dataset = str(settings_of_run.pop("dataset", ""))
        method = {name: value for name, value in settings_of_run.items() if name not in _NOT_METHOD}
        key = json.dumps(method, sort_keys=True)
        settings[key] = method
        points = [(float(row[x]), float(row[metric])) for row in rows]
        groups.setdefault(dataset, {}).setdefault(key, []).append(points)
    if not groups:
        columns = sorted(
            {name for run in runs for row in read_csv(run / CURVE)[:1] for name in row}
        )
        raise InvalidDatasetError(
            f"None of the {len(runs)} runs has a column {metric!r}. Expected one of {columns}."
        )
    return {
        dataset: {
            label: _stack(lines[key])
            for key, label in _labels({key: settings[key] for key in lines}).items()
        }
        for dataset, lines in groups.items()
    }


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _labels(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Labels methods by algorithm and, if ambiguous, by the settings that differ."""
    labels = {}
    for key, method in methods.items():
        algorithm = method.get("algorithm")
        name = str(algorithm or "pre-training")
        same = [other for other in methods.values() if other.get("algorithm") == algorithm]
        differing = sorted(
            field
            for field in {field for other in same for field in other}
            if len({json.dumps(other.get(field)) for other in same}) > 1
        )
        changed = [f"{field.removeprefix('fields.')}={method.get(field)}" for field in differing]
        labels[key] = ", ".join([name, *changed])
    return labels


def _stack(curves: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    length = min(map(len, curves))
    return Curve(
        np.mean([[place for place, _ in curve[:length]] for curve in curves], axis=0),
        np.array([[value for _, value in curve[:length]] for curve in curves]),
    )
