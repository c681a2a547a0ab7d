"""One training with several seeds, each in a folder of its own, and their curves in one picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.runs.curves import read_curves
from spin_d3rlpy.runs.plots import plot_curve_panels
from spin_d3rlpy.runs.settings import TrainSettings
from spin_d3rlpy.runs.training import run_training

PICTURE = "curves.png"
METRICS = ("return", "action_match")  # with an environment, and without


def parse_seeds(text: str) -> list[int]:
    """Reads seeds such as `0,1,2`.

    Raises:
        ValueError: they are not different whole numbers of at least 0.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise ValueError(f"Expected seeds as different whole numbers such as 0,1,2, got {text!r}.")
    return [int(part) for part in parts]


def seed_folder(folder: Path, seed: int) -> Path:
    """Returns the folder of one seed's run."""
    return folder / f"seed-{seed}"


def run_seeds(
    folder: Path,
    settings: TrainSettings,
    seeds: Sequence[int],
    show_progress: bool = True,
    trust: bool = False,
) -> dict[str, Any]:
    """Trains with each seed, or resumes, one after the other, and draws their curves.

    Args:
        folder: gets a folder `seed-<n>` for each, as of `run_training`, and `curves.png`: the mean
            over seeds and a band from the lowest to the highest.
        settings: what to train; their own seed is not used.
        seeds: of networks and mini-batches.
        show_progress: draw progress bars.
        trust: see `load_dataset`.

    Returns:
        `runs` (each one's `result.json`), the `metric` that was drawn, its `mean`, `lowest` and
        `highest` at the end, and the `picture`.

    Raises:
        ValueError: as of `run_training`.
        DatasetNotFoundError: see `load_dataset`.
        InvalidDatasetError: see `load_dataset`.
    """
    folders = [seed_folder(folder, seed) for seed in seeds]
    runs = [
        run_training(own, dataclasses.replace(settings, seed=seed), show_progress, trust)
        for own, seed in zip(folders, seeds, strict=True)
    ]
    metric = next(name for name in METRICS if name in runs[0])
    picture = folder / PICTURE
    ylabel = "mean return of the evaluation episodes" if metric == "return" else "action match"
    plot_curve_panels(picture, read_curves(folders, metric), ylabel)
    values = np.array([run[metric] for run in runs])
    return {
        "runs": runs,
        "metric": metric,
        "mean": float(values.mean()),
        "lowest": float(values.min()),
        "highest": float(values.max()),
        "picture": str(picture),
    }
