"""The demonstration: SPIN and factored IQL on a real dataset, in minutes on a CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.algos.saving import load_policy
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_d3rlpy.files.atomic import write_text
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import format_table, read_csv, write_csv
from spin_d3rlpy.files.yaml_settings import format_settings
from spin_d3rlpy.runs.play import record_policy
from spin_d3rlpy.runs.plots import Curve, plot_curve_panels
from spin_d3rlpy.runs.settings import TrainSettings, train_settings
from spin_d3rlpy.runs.training import CURVE, POLICY, run_training
from spin_envs import MissingDependencyError, normalized_score, reference_scores

ENV_ID = "spin/cheetah-run-v0"
BINS = 3
DATASET = "spin/cheetah-run-b3/medium-expert-v0"
SIZE = 400_000  # transitions
FINAL_EPISODES = 20
EVALUATION_EPISODES = 5
EPOCHS = 4
EVALUATION_SEED = 100
VIDEO_STEPS = 250
LEAST_SHARE = 0.05  # of the seconds, for pre-training to be shown
SPIN = "SPINIDQL"
ALGORITHMS = {"SPIN": SPIN, "F-IQL": "FactoredIQL"}


def run_demo(
    folder: Path,
    *,
    minutes: float = 2.5,
    seed: int = 0,
    size: int = SIZE,
    device: str = "cpu:0",
    recipe: str = "tuned",
    jobs: int | None = None,
    show_progress: bool = True,
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Builds the dataset, trains both algorithms for the same time and compares them.

    They train at the same time, one in a process of its own. Writes `results.csv`, `curves.csv`,
    `curves.png`, `spin.gif` and one `spin_d3rlpy.runs.training` folder per algorithm. Finished
    trainings are reused, interrupted ones resumed, those with other settings refused by ValueError,
    a folder that another demo is using by FolderInUseError.
    Returns one table row per algorithm. `minutes` are per algorithm, `size` is the dataset's.
    """
    log(f"[1/3] Dataset {DATASET}")
    dataset, env = load_dataset(DATASET, size=size, jobs=jobs, progress=show_progress)
    n, nvec = dataset.transition_count, dataset.nvec
    log(f"      {n:,} transitions, {dataset.size()} episodes, {nvec=}")
    common = {
        "dataset": DATASET,
        "recipe": recipe,
        "seconds": 60.0 * minutes,
        "seed": seed,
        "size": size,
        "device": device,
        "episodes": EVALUATION_EPISODES,
        "evaluation_seed": EVALUATION_SEED,
        "n_epochs": EPOCHS,
    }
    settings = {
        name: train_settings({**common, "algorithm": name}, "demo") for name in ALGORITHMS.values()
    }
    evaluator = LockstepEvaluator(env, FINAL_EPISODES, EVALUATION_SEED, "greedy")
    log(f"[2/3] {' and '.join(ALGORITHMS)}: {60 * minutes:.0f} seconds of training each")
    runs = _train(folder, settings, show_progress)
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    curves: dict[str, Curve] = {}
    for label, name in ALGORITHMS.items():
        run, curve = runs[name], read_csv(folder / name / CURVE)
        returns = evaluator.returns(load_policy(folder / name / POLICY, device))
        rows.append(
            {
                "algorithm": label,
                "return": f"{returns.mean():.1f}",
                "std": f"{returns.std():.1f}",
                "score": f"{normalized_score(ENV_ID, float(returns.mean()), bins=BINS):.1f}",
                "steps": run["steps"],
                "seconds": round(run["seconds"], 1),
            }
        )
        points += [
            {
                "algorithm": label,
                "step": int(row["step"]),
                "seconds": round(float(row["seconds"]), 1),
                "mean_return": round(float(row["return"]), 2),
                "std_return": round(float(row["return_std"]), 2),
                "episodes": run["episodes"],
            }
            for row in curve
        ]
        x, y = (np.array([float(row[key]) for row in curve]) for key in ("seconds", "return"))
        curves[label] = Curve(x, y[None], _pretraining_seconds(curve))
    env.close()
    log("[3/3] Results")
    write_csv(folder / "results.csv", rows)
    write_csv(folder / "curves.csv", points)
    scores = reference_scores(ENV_ID, bins=BINS)
    assert scores is not None
    lines = {"published expert": scores[1], "mean of the dataset": float(dataset.returns().mean())}
    plot_curve_panels(
        folder / "curves.png",
        {DATASET: curves},
        reference_lines={DATASET: lines},
        xlabel="seconds of training, pre-training included",
    )
    log(format_table(rows))
    video = folder / "spin.gif"
    try:
        record_policy(str(folder / SPIN), video, max_steps=VIDEO_STEPS, device=device)
        log(f"{video} shows {VIDEO_STEPS} steps of SPIN.")
    except MissingDependencyError as error:
        log(f"No video of SPIN: {error}")
    log(
        f"\nReturns are means over {FINAL_EPISODES} seeded episodes, greedy actions; the score "
        "is 0 for random actions and 100 for the published expert. Seconds include pre-training.\n"
        f"Saved in {folder}. Use a policy: "
        f'spin_d3rlpy.load_policy("{folder / SPIN / POLICY}").predict(observations)'
    )
    return rows


def _pretraining_seconds(rows: Sequence[Mapping[str, str]]) -> float:
    """Returns when the first steps began to be measured; 0 if that was soon.

    `rows` are a training's, the first one before any step, the second after an epoch.
    """
    first, last = rows[min(1, len(rows) - 1)], rows[-1]
    before = float(first["seconds"]) - float(first["update_seconds"])
    # Moving the dataset to its device takes a moment for every algorithm.
    return before if before > LEAST_SHARE * float(last["seconds"]) else 0.0


def _train(
    folder: Path, settings: Mapping[str, TrainSettings], show_progress: bool
) -> dict[str, dict[str, Any]]:
    """Trains the algorithms at the same time; the first one shows its bars."""
    results = {}
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(exclusive_folder(folder, wait=False))  # before files of runs change
        others = [
            stack.enter_context(_in_background(folder / name, settings[name]))
            for name in list(settings)[1:]
        ]
        for name in settings:
            # Reads the results of one that is finished, resumes one that failed.
            results[name] = run_training(folder / name, settings[name], show_progress)
            for process in others:
                process.wait()
    return results


@contextmanager
def _in_background(folder: Path, settings: TrainSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Trains in a process of its own, which writes nothing and is ended with the context."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder.with_suffix(".yaml")
    write_text(config, format_settings(settings))
    command = ["train", "--config", str(config), "--out", str(folder), "--no-progress"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from spin_d3rlpy.cli import main; main()", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt is for the demo, which then ends this process
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
