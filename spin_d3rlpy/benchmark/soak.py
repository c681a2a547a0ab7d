"""A long run of `fit` with evaluation, checkpoints and logs: do memory and speed stay flat?

Speed is given as time of this process's own on the processor (CPU time) and as time on the clock;
only the latter changes with what else the machine does.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.logging import FileAdapterFactory

from spin_d3rlpy.algos import SPINIQL
from spin_d3rlpy.benchmark.process_memory import resident_bytes
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.metrics import LockstepEvaluator
from spin_d3rlpy.plots import COLORS
from spin_d3rlpy.policies import SPINEncoderFactory
from spin_d3rlpy.presets import get_preset
from spin_d3rlpy.reports import describe_machine, format_table, write_csv

DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
WARM_UP = 0.1  # share of the run after which memory and speed are expected to be flat
Row = dict[str, Any]


def run_soak(
    out: Path,
    minutes: float = 65.0,
    preset: str = "cpu-small",
    size: int | None = None,
    episodes: int = 4,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains SPIN-IQL for so long and writes `soak.csv`, `soak.png` and `soak.json`.

    Args:
        out: folder for results.
        minutes: of stage 2, on the clock. The epoch that begins before they are over is
            finished, and three epochs are made at least.
        preset: sizes, see `spin_d3rlpy.presets`.
        size: transitions of the dataset; the published 200,000 if None.
        episodes: played after each epoch.
        log: gets what was found as text.

    Returns:
        What is in `soak.json`.

    Raises:
        ValueError: an unknown preset.
    """
    sizes = get_preset(preset)
    buffer, env = load_dataset(DATASET, size=size)
    d3rlpy.seed(0)
    algo = SPINIQL(
        batch_size=sizes.batch_size,
        precision=sizes.precision,
        actor_encoder_factory=SPINEncoderFactory(transformer=sizes.transformer),
        pretraining=sizes.pretraining,
    )
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
            n_steps_per_epoch=sizes.n_steps_per_epoch,
            logger_adapter=FileAdapterFactory(folder),
            show_progress=False,
            save_interval=10,
            evaluators={"return": evaluator},
            epoch_callback=note_updates,
            checkpoint_dir=Path(folder) / "checkpoints",
            checkpoint_interval=sizes.n_steps_per_epoch // 2,
        )
        _, metrics = next(run)  # pre-training, and the first epoch with everything's first use
        started, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - started < 60 * minutes or len(rows) < 3:
            epoch, metrics = next(run)
            rows.append(
                {
                    "epoch": epoch,
                    "step": epoch * sizes.n_steps_per_epoch,
                    "minutes": round((time.monotonic() - started) / 60, 3),
                    "resident_mb": round(resident_bytes("VmRSS") / 1e6, 2),
                    "open_files": _open_files(),
                    "cpu_ms_per_step": round(1e3 * (updated - cpu) / sizes.n_steps_per_epoch, 4),
                    "clock_ms_per_step": round(
                        1e3 * metrics["time_epoch"] / sizes.n_steps_per_epoch, 4
                    ),
                    "evaluation_cpu_seconds": round(time.process_time() - updated, 3),
                    "return": round(metrics["return"], 2),
                }
            )
            cpu = time.process_time()
        run.close()
    env.close()
    evaluator.close()
    found = {
        "dataset": DATASET,
        "transitions": buffer.transition_count,
        "preset": preset,
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


def trends(rows: Sequence[Row]) -> dict[str, float]:
    """Returns how memory and speed change after the warm-up, by lines fitted to them.

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
    return {
        "resident_mb": float(column("resident_mb").mean().round(1)),
        "resident_mb_growth": round(growth("resident_mb"), 2),
        "open_files_growth": round(growth("open_files"), 2),
        cpu: float(column(cpu).mean().round(3)),
        "cpu_growth_percent": round(100 * growth(cpu) / float(column(cpu).mean()), 2),
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
    speed.set_yscale("log")  # a busy machine's clock would hide everything else
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
