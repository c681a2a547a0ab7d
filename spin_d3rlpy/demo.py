"""The demonstration: SPIN-IQL and factored IQL on a real dataset, in minutes on a CPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spin_d3rlpy.algos.files import load_policy
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.metrics import LockstepEvaluator
from spin_d3rlpy.plots import plot_learning_curves
from spin_d3rlpy.recording import record_policy
from spin_d3rlpy.reports import format_table, read_csv, write_csv
from spin_d3rlpy.run_settings import TrainSettings, train_settings
from spin_d3rlpy.settings import format_settings
from spin_d3rlpy.training import CURVE, POLICY, run_training
from spin_envs import MissingDependencyError, normalized_score, reference_scores

ENV_ID = "spin/cheetah-run-v0"
BINS = 3
DATASET = "spin/cheetah-run-b3/medium-expert-v0"
FINAL_EPISODES = 20
EVALUATION_EPISODES = 5
EPOCHS = 4
EVALUATION_SEED = 100
VIDEO_STEPS = 250
ALGORITHMS = {"SPIN-IQL": "SPINIQL", "F-IQL": "FactoredIQL"}

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """Settings that determine the demo's numbers, apart from the machine's speed.

    Args:
        minutes: training time per algorithm, SPIN's pre-training included.
        seed: of networks and mini-batches.
        size: transitions of the dataset.
        device: as in d3rlpy.
        recipe: name in `spin_d3rlpy.recipes.RECIPES`.
    """

    minutes: float = 2.5
    seed: int = 0
    size: int = 400_000
    device: str = "cpu:0"
    recipe: str = "tuned"


def run_demo(
    folder: Path,
    settings: DemoSettings | None = None,
    jobs: int | None = None,
    show_progress: bool = True,
    log: Log = print,
) -> list[dict[str, Any]]:
    """Builds the dataset, trains both algorithms for the same time and compares them.

    They train at the same time, one in a process of its own.

    Writes `results.csv`, `curves.csv`, `curves.png`, `spin.gif` and one `spin_d3rlpy.training`
    folder per algorithm. Finished trainings are reused, interrupted ones resumed.

    Args:
        folder: output folder; created if missing.
        settings: what to run.
        jobs: processes that build the dataset; all cores if None.
        show_progress: draw progress bars.
        log: called with lines of text.

    Returns:
        One table row per algorithm.

    Raises:
        ValueError: the folder holds a demo with other settings.
    """
    settings = settings or DemoSettings()
    log(f"[1/3] Dataset {DATASET}")
    dataset, env = load_dataset(DATASET, size=settings.size, jobs=jobs, progress=show_progress)
    log(
        f"      {dataset.transition_count:,} transitions, {dataset.size()} episodes, "
        f"nvec={dataset.nvec}"
    )
    evaluator = LockstepEvaluator(env, FINAL_EPISODES, EVALUATION_SEED, "greedy")
    log(f"[2/3] {' and '.join(ALGORITHMS)}: {60 * settings.minutes:.0f} seconds of training each")
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for label, run in _train(folder, settings, show_progress).items():
        name = ALGORITHMS[label]
        returns = evaluator.returns(load_policy(folder / name / POLICY, settings.device))
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
        curves += [
            {
                "algorithm": label,
                "step": int(row["step"]),
                "seconds": round(float(row["seconds"]), 1),
                "mean_return": round(float(row["return"]), 2),
                "std_return": round(float(row["return_std"]), 2),
                "episodes": run["episodes"],
            }
            for row in read_csv(folder / name / CURVE)
        ]
    env.close()
    log("[3/3] Results")
    write_csv(folder / "results.csv", rows)
    write_csv(folder / "curves.csv", curves)
    data_mean = float(dataset.returns().mean())
    _plot(folder / "curves.png", curves, dataset.transition_count, data_mean)
    log(format_table(rows))
    video = folder / "spin.gif"
    try:
        record_policy(str(folder / "SPINIQL"), video, max_steps=VIDEO_STEPS, device=settings.device)
        log(f"{video} shows {VIDEO_STEPS} steps of SPIN-IQL.")
    except MissingDependencyError as error:
        log(f"No video of SPIN-IQL: {error}")
    log(
        f"\nReturns are means over {FINAL_EPISODES} seeded episodes, greedy actions; the score "
        "is 0 for random actions and 100 for the published expert. Seconds include pre-training.\n"
        f"Saved in {folder}: curves.png, curves.csv, results.csv and the policies.\n\n"
        "Use a policy:\n"
        "  import spin_d3rlpy\n"
        f'  policy = spin_d3rlpy.load_policy("{folder / "SPINIQL" / POLICY}")\n'
        f'  dataset, env = spin_d3rlpy.load_dataset("{DATASET}", size={settings.size})\n'
        "  observation, _ = env.reset(seed=0)\n"
        "  action = policy.predict(observation[None])[0]"
    )
    return rows


def _train(folder: Path, settings: DemoSettings, show_progress: bool) -> dict[str, dict[str, Any]]:
    """Trains the algorithms at the same time; the first one shows its bars."""
    runs = {}
    for label, name in ALGORITHMS.items():
        values = {
            "dataset": DATASET,
            "algorithm": name,
            "recipe": settings.recipe,
            "seconds": 60.0 * settings.minutes,
            "seed": settings.seed,
            "size": settings.size,
            "device": settings.device,
            "episodes": EVALUATION_EPISODES,
            "evaluation_seed": EVALUATION_SEED,
            "n_epochs": EPOCHS,
        }
        runs[label] = (folder / name, train_settings(values, "demo"))
    results = {}
    with ExitStack() as stack:
        others = [stack.enter_context(_in_background(*run)) for run in list(runs.values())[1:]]
        for label, run in runs.items():
            # Reads the results of one that is finished, resumes one that failed.
            results[label] = run_training(*run, show_progress)
            for process in others:
                process.wait()
    return results


@contextmanager
def _in_background(folder: Path, settings: TrainSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Trains in a process of its own, which writes nothing and is ended with the context."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder.with_suffix(".yaml")
    config.write_text(format_settings(settings))
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


def _plot(path: Path, curves: list[dict[str, Any]], size: int, data_mean: float) -> None:
    def points(label: str) -> tuple[list[float], list[float], list[float]]:
        rows = [row for row in curves if row["algorithm"] == label]
        # Standard error of the mean over the episodes.
        errors = [row["std_return"] / row["episodes"] ** 0.5 for row in rows]
        return [row["seconds"] for row in rows], [row["mean_return"] for row in rows], errors

    scores = reference_scores(ENV_ID, bins=BINS)
    assert scores is not None
    plot_learning_curves(
        path,
        {"SPIN-IQL (pre-training included)": points("SPIN-IQL"), "F-IQL": points("F-IQL")},
        f"cheetah-run, 3 bins, medium-expert, {size:,} transitions",
        reference_lines={"published expert": scores[1], "mean of the dataset": data_mean},
        xlabel="seconds of training",
    )
