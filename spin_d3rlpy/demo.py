"""The demonstration: SPIN-IQL and factored IQL on a real dataset, in minutes on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.algos.files import load_policy
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.metrics import ActionMode, LockstepEvaluator
from spin_d3rlpy.plots import plot_learning_curves
from spin_d3rlpy.reports import format_table, read_csv, write_csv
from spin_d3rlpy.run_settings import pretrain_settings, train_settings
from spin_d3rlpy.training import CURVE, POLICY, run_pretraining, run_training
from spin_envs import normalized_score, reference_scores

ENV_ID = "spin/cheetah-run-v0"
BINS = 3
DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
FINAL_EPISODES = 20
EVALUATION_SEED = 100
MODE: ActionMode = "sample"  # the published IQL results are of sampled actions
ALGORITHMS = {"SPIN-IQL": "SPINIQL", "F-IQL": "FactoredIQL"}

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """What the demo's numbers depend on.

    Args:
        preset: name in `spin_d3rlpy.presets.PRESETS`.
        seed: of networks and mini-batches.
        size: transitions of the dataset; the published size if None.
        device: as in d3rlpy.
    """

    preset: str = "cpu-small"
    seed: int = 0
    size: int | None = None
    device: str = "cpu:0"


def run_demo(
    folder: Path,
    settings: DemoSettings | None = None,
    jobs: int | None = None,
    show_progress: bool = True,
    log: Log = print,
) -> list[dict[str, Any]]:
    """Builds the dataset, trains both algorithms for the same number of steps and compares them.

    Leaves in `folder`: `results.csv`, `curves.csv`, `curves.png`, and a folder of
    `spin_d3rlpy.training` for each stage: `asm`, `SPINIQL` and `FactoredIQL`, with their policies.
    Stages that are there are reused, those that were interrupted are resumed.

    Args:
        folder: where results go; created if missing.
        settings: what to run.
        jobs: processes that build the dataset; all cores if None.
        show_progress: draw progress bars.
        log: gets lines of text.

    Returns:
        The rows of the table, one per algorithm.

    Raises:
        ValueError: the folder holds a demo with other settings.
    """
    settings = settings or DemoSettings()
    log(f"[1/4] Dataset {DATASET}")
    dataset, env = load_dataset(DATASET, size=settings.size, jobs=jobs, progress=show_progress)
    log(
        f"      {dataset.transition_count:,} transitions, {dataset.size()} episodes, "
        f"nvec={dataset.nvec}"
    )
    common = {"dataset": DATASET, **dataclasses.asdict(settings)}
    preset = common.pop("preset")
    log("[2/4] SPIN-IQL: pre-training, then training")
    pretraining = pretrain_settings(common, preset, "demo")
    asm = run_pretraining(folder / "asm", pretraining, show_progress)
    evaluator = LockstepEvaluator(env, FINAL_EPISODES, EVALUATION_SEED, MODE)
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for label, name in ALGORITHMS.items():
        if rows:
            log("[3/4] Factored IQL: the same number of steps")
        values = {**common, "algorithm": name, "mode": MODE, "evaluation_seed": EVALUATION_SEED}
        pretrained = name == "SPINIQL"
        if pretrained:
            values["asm"] = asm["asm"]
        result = run_training(folder / name, train_settings(values, preset, "demo"), show_progress)
        returns = evaluator.returns(load_policy(folder / name / POLICY, settings.device))
        rows.append(
            {
                "algorithm": label,
                "return": f"{returns.mean():.1f}",
                "std": f"{returns.std():.1f}",
                "score": f"{normalized_score(ENV_ID, float(returns.mean()), bins=BINS):.1f}",
                "steps": result["steps"],
                "seconds": round(result["update_seconds"], 1),
                "pretrain_updates": asm["step"] if pretrained else 0,
                "pretrain_seconds": round(asm["seconds"], 1) if pretrained else 0.0,
            }
        )
        curves += [
            {
                "algorithm": label,
                "step": int(row["step"]),
                "mean_return": round(float(row["return"]), 2),
                "std_return": round(float(row["return_std"]), 2),
                "episodes": result["episodes"],
            }
            for row in read_csv(folder / name / CURVE)
        ]
    env.close()
    log("[4/4] Results")
    write_csv(folder / "results.csv", rows)
    write_csv(folder / "curves.csv", curves)
    _plot(folder / "curves.png", curves, asm["step"], dataset)
    log(format_table(rows))
    log(
        f"\nReturns are means over {FINAL_EPISODES} seeded episodes, actions sampled; the score "
        "is 0 for random actions and 100 for the published expert.\n"
        f"Saved in {folder}: curves.png, curves.csv, results.csv and the policies.\n\n"
        "Use a policy:\n"
        "  import spin_d3rlpy\n"
        f'  policy = spin_d3rlpy.load_policy("{folder / "SPINIQL" / POLICY}")\n'
        f'  dataset, env = spin_d3rlpy.load_dataset("{DATASET}")\n'
        "  observation, _ = env.reset(seed=0)\n"
        "  action = policy.predict(observation[None])[0]\n"
        "The paper's sizes: spin-d3rlpy demo --preset paper (days on a CPU; --device cuda:0)."
    )
    return rows


def _plot(
    path: Path, curves: list[dict[str, Any]], updates: int, dataset: DeviceReplayBuffer
) -> None:
    def points(label: str) -> tuple[list[float], list[float], list[float]]:
        rows = [row for row in curves if row["algorithm"] == label]
        # Standard error of the mean over the episodes.
        errors = [row["std_return"] / row["episodes"] ** 0.5 for row in rows]
        return [row["step"] for row in rows], [row["mean_return"] for row in rows], errors

    scores = reference_scores(ENV_ID, bins=BINS)
    assert scores is not None
    data_mean = float(np.mean([episode.compute_return() for episode in dataset.episodes]))
    plot_learning_curves(
        path,
        {
            f"SPIN-IQL (after {updates:,} pre-training updates)": points("SPIN-IQL"),
            "F-IQL": points("F-IQL"),
        },
        f"cheetah-run, 3 bins, random-medium-expert, {dataset.transition_count:,} transitions",
        reference_lines={"published expert": scores[1], "mean of the dataset": data_mean},
    )
