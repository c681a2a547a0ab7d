"""A long run of `fit` with evaluation, checkpoints and logs: do memory and speed stay flat?

Speed is given as time of this process's own on the processor (CPU time) and as time on the clock.
Both change with what else the machine does (its clock rate, its caches and memory are shared, also
with neighbors that a virtual machine cannot see). So every few epochs a process that has just
started makes the same steps: a long run that slows down falls behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import numpy as np
import torch
import typer
from d3rlpy.logging import FileAdapterFactory, NoopAdapterFactory

from spin_d3rlpy.algos import SPINIQL
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.runs.plots import COLORS
from tests.measure.process_memory import resident_bytes

DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
WARM_UP = 0.1  # share of the run after which memory and speed are expected to be flat
COMPARISON_INTERVAL = 10  # epochs
EPOCH_STEPS = {"tuned": 1_000, "smoke": 20}
Row = dict[str, Any]


def run_soak(
    out: Path,
    minutes: float = 65.0,
    recipe: str = "tuned",
    size: int | None = None,
    episodes: int = 4,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains SPIN-IQL for so long and writes `soak.csv`, `soak.png` and `soak.json`.

    Args:
        out: folder for results.
        minutes: of stage 2, on the clock. The epoch that begins before they are over is
            finished, and three epochs are made at least.
        recipe: name in `spin_d3rlpy.algos.recipes.RECIPES`.
        size: transitions of the dataset; the published 200,000 if None.
        episodes: played after each epoch.
        log: gets what was found as text.

    Returns:
        What is in `soak.json`.

    Raises:
        ValueError: an unknown recipe.
    """
    buffer, env = load_dataset(DATASET, size=size)
    d3rlpy.seed(0)
    algo = SPINIQL(recipe=recipe)
    epoch_steps = EPOCH_STEPS[recipe]
    rows: list[Row] = []
    updated = 0.0  # CPU time when an epoch's updates are done

    def note_updates(_algo: Any, _epoch: int, _step: int) -> None:
        nonlocal updated
        updated = time.process_time()

    evaluator = LockstepEvaluator(env, episodes)
    with tempfile.TemporaryDirectory() as folder:
        run = algo.fitter(
            buffer,
            n_steps=10**9,
            n_steps_per_epoch=epoch_steps,
            logger_adapter=FileAdapterFactory(folder),
            show_progress=False,
            save_interval=10,
            evaluators={"return": evaluator},
            epoch_callback=note_updates,
            checkpoint_dir=Path(folder) / "checkpoints",
            checkpoint_interval=epoch_steps // 2,
        )
        _, metrics = next(run)  # pre-training, and the first epoch with everything's first use
        started, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - started < 60 * minutes or len(rows) < 3:
            epoch, metrics = next(run)
            rows.append(
                {
                    "epoch": epoch,
                    "step": epoch * epoch_steps,
                    "minutes": round((time.monotonic() - started) / 60, 3),
                    "resident_mb": round(resident_bytes("VmRSS") / 1e6, 2),
                    "open_files": _open_files(),
                    "cpu_ms_per_step": round(1e3 * (updated - cpu) / epoch_steps, 4),
                    "clock_ms_per_step": round(1e3 * metrics["time_epoch"] / epoch_steps, 4),
                    "evaluation_cpu_seconds": round(time.process_time() - updated, 3),
                    "return": round(metrics["return"], 2),
                }
            )
            if len(rows) % COMPARISON_INTERVAL == 1:
                rows[-1]["fresh_cpu_ms_per_step"] = fresh_cpu_ms_per_step(recipe, size)
            else:
                rows[-1]["fresh_cpu_ms_per_step"] = ""
            cpu = time.process_time()
        run.close()
    env.close()
    evaluator.close()
    found = {
        "dataset": DATASET,
        "transitions": buffer.transition_count,
        "recipe": recipe,
        "episodes": episodes,
        "steps": rows[-1]["step"],
        "minutes": rows[-1]["minutes"],
        **trends(rows),
        **describe_machine(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "soak.csv", rows)
    (out / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    _plot(out / "soak.png", rows, torch.get_num_threads())
    log(format_table([{k: found[k] for k in ("steps", "minutes", *trends(rows))}]))
    return found


def fresh_cpu_ms_per_step(recipe: str, size: int | None) -> float:
    """Milliseconds of CPU time that a gradient step takes in a process that has just started."""
    code = f"from tests.measure.soak import measure; measure({recipe!r}, {size!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600
    )
    return float(done.stdout.splitlines()[-1])


def measure(recipe: str, size: int | None) -> None:
    """Trains for two epochs, on an untrained trunk, and prints what a step of the second took."""
    buffer, env = load_dataset(DATASET, size=size)
    env.close()
    algo = SPINIQL(recipe=recipe)
    algo.config.policy.pretraining.max_updates = 1
    epoch_steps = EPOCH_STEPS[recipe]
    times: list[float] = []
    algo.fit(
        buffer,
        n_steps=2 * epoch_steps,
        n_steps_per_epoch=epoch_steps,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
        epoch_callback=lambda *_: times.append(time.process_time()),
    )
    print(round(1e3 * (times[1] - times[0]) / epoch_steps, 4))


def trends(rows: Sequence[Row]) -> dict[str, float]:
    """Returns how memory and speed change after the warm-up.

    By lines fitted to them, and by the CPU time of a step over that in a fresh process at the
    time, medians of the comparisons in either half of the run.

    Args:
        rows: of epochs, as in `soak.csv`.
    """
    flat = rows[int(WARM_UP * len(rows)) :]

    def column(name: str) -> np.ndarray[Any, Any]:
        return np.array([float(row[name]) for row in flat])

    def growth(name: str) -> float:
        """Of the fitted line from its first to its last epoch."""
        slope, _ = np.polyfit(column("minutes"), column(name), 1)
        return float(slope * (column("minutes")[-1] - column("minutes")[0]))

    cpu = "cpu_ms_per_step"
    # The epochs before and after a comparison, next to it.
    ratios = [
        (float(before[cpu]) + float(after[cpu])) / 2 / float(before["fresh_cpu_ms_per_step"])
        for before, after in pairwise(rows)
        if before["fresh_cpu_ms_per_step"] != ""
    ]
    half = len(ratios) // 2
    return {
        "resident_mb": float(column("resident_mb").mean().round(1)),
        "resident_mb_growth": round(growth("resident_mb"), 2),
        "open_files_growth": round(growth("open_files"), 2),
        cpu: float(column(cpu).mean().round(3)),
        "cpu_growth_percent": round(100 * growth(cpu) / float(column(cpu).mean()), 2),
        "over_fresh_first_half": round(float(np.median(ratios[: max(1, half)])), 3),
        "over_fresh_second_half": round(float(np.median(ratios[half:])), 3),
    }


def _open_files() -> int:
    """Number of open file descriptors; 0 where the system does not show them."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _plot(path: Path, rows: Sequence[Row], threads: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 6.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    memory, speed, returns = figure.subplots(3, 1, sharex=True)
    minutes = [row["minutes"] for row in rows]
    memory.plot(minutes, [row["resident_mb"] for row in rows], color=COLORS[0])
    memory.set_ylabel("resident memory, MB")
    speed.plot(
        minutes, [row["clock_ms_per_step"] for row in rows], color="0.75", label="on the clock"
    )
    speed.plot(minutes, [row["cpu_ms_per_step"] for row in rows], color=COLORS[1], label="CPU time")
    compared = [row for row in rows if row["fresh_cpu_ms_per_step"] != ""]
    speed.plot(
        [row["minutes"] for row in compared],
        [row["fresh_cpu_ms_per_step"] for row in compared],
        color=COLORS[0],
        marker="o",
        linestyle="none",
        label="CPU time in a fresh process",
    )
    speed.set_ylim(0, 1.5 * max(row["cpu_ms_per_step"] for row in rows))
    speed.set_ylabel("ms a gradient step")
    speed.legend(frameon=False)
    returns.plot(minutes, [row["return"] for row in rows], color=COLORS[2])
    returns.set_ylabel("mean return")
    returns.set_xlabel("minutes of stage 2")
    memory.set_ylim(0, 1.2 * max(row["resident_mb"] for row in rows))
    returns.set_ylim(bottom=0)
    for axes in (memory, speed, returns):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    memory.set_title(f"SPIN-IQL, {rows[-1]['step']:,} steps, {threads} thread(s)", fontsize=11)
    figure.savefig(path)


def main(
    out: Annotated[Path, typer.Option(help="Folder for table and picture.")] = Path("spin-soak"),
    minutes: Annotated[float, typer.Option(help="How long.")] = 65.0,
    recipe: Annotated[str, typer.Option(help="tuned or smoke.")] = "tuned",
    size: Annotated[int | None, typer.Option(help="Transitions; default: 200,000.")] = None,
) -> None:
    """Train for an hour, with evaluation, and see whether memory and speed stay flat."""
    run_soak(out, minutes, recipe, size)


if __name__ == "__main__":
    typer.run(main)
