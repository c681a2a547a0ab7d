"""Learning curves as CSV files and pictures, and result tables as text."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from spin_d3rlpy._compat import cpu_multiplies_bfloat16
from spin_d3rlpy._version import __version__
from spin_d3rlpy.atomic import written_whole

# Okabe and Ito's palette, told apart by readers with any form of color blindness.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the first row's keys as header, in one step."""
    with written_whole(path) as partial, partial.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as an aligned text table with the first row's keys as header."""
    header = list(rows[0])
    cells = [header, *([str(row[key]) for key in header] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            # Names to the left, numbers to the right.
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def plot_learning_curves(
    path: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    title: str,
    ylabel: str = "mean return of the evaluation episodes",
    reference_lines: Mapping[str, float] | None = None,
) -> None:
    """Draws one line with a band per algorithm and saves a PNG.

    Args:
        path: where the picture goes.
        curves: by name, (gradient steps, mean returns, half-widths of the band).
        title: what was run.
        ylabel: label of the vertical axis.
        reference_lines: horizontal lines by name.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for color, (name, (steps, means, bands)) in zip(COLORS, curves.items(), strict=False):
        axes.plot(steps, means, color=color, marker="o", markersize=3.5, label=name)
        low = [m - b for m, b in zip(means, bands, strict=True)]
        high = [m + b for m, b in zip(means, bands, strict=True)]
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    for name, value in (reference_lines or {}).items():
        axes.axhline(value, color="0.5", linewidth=1.0, linestyle="--")
        axes.annotate(
            name,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            color="0.35",
            fontsize=8,
        )
    axes.set_xlabel("gradient steps of offline RL")
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path)


def describe_machine() -> dict[str, Any]:
    """What measured numbers depend on: versions of packages, platform and processors."""
    packages = ("torch", "d3rlpy", "gymnasium", "minari", "mujoco", "dm_control")
    return {
        "versions": {
            "spin-d3rlpy": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "bfloat16_units": cpu_multiplies_bfloat16(),
        },
    }
