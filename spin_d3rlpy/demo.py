"""The demonstration: SPIN-IQL beside factored IQL on a real dataset, in minutes on a CPU."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.logging import FileAdapterFactory

from spin_d3rlpy.algos import SPINIQL, FactoredIQL
from spin_d3rlpy.asm import ActionStructureModel, load_asm, save_asm
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.metrics import ActionMode, LockstepEvaluator
from spin_d3rlpy.plots import plot_learning_curves
from spin_d3rlpy.policies import SPINEncoderFactory
from spin_d3rlpy.presets import Preset, get_preset
from spin_d3rlpy.reports import describe_machine, format_table, write_csv
from spin_envs import normalized_score, reference_scores

ENV_ID = "spin/cheetah-run-v0"
BINS = 3
DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
FINAL_EPISODES = 20
CURVE_EPISODES = 10
EVALUATION_SEED = 100
MODE: ActionMode = "sample"  # the published IQL results are of sampled actions

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

    Leaves in `folder`: `results.csv`, `curves.csv`, `curves.png`, `spin_iql.d3`,
    `factored_iql.d3`, `asm.safetensors`, `settings.json` and `logs/`. What is already there for
    the same settings is reused: the dataset, the ASM and finished trainings.

    Args:
        folder: where results go; created if missing.
        settings: what to run.
        jobs: processes that build the dataset; all cores if None.
        show_progress: draw progress bars.
        log: gets lines of text.

    Returns:
        The rows of the table, one per algorithm.
    """
    settings = settings or DemoSettings()
    preset = get_preset(settings.preset)
    folder.mkdir(parents=True, exist_ok=True)
    log(f"[1/4] Dataset {DATASET}")
    dataset, env = load_dataset(DATASET, size=settings.size, jobs=jobs, progress=show_progress)
    log(
        f"      {dataset.transition_count:,} transitions, {dataset.size()} episodes, "
        f"nvec={dataset.nvec}"
    )
    _start_anew_if_changed(folder, settings, dataset)
    trainer = _Trainer(folder, settings, preset, dataset, env, show_progress)

    log(f"[2/4] SPIN-IQL: pre-training, then {preset.n_steps:,} steps")
    spin = trainer.train_spin()
    log(f"[3/4] Factored IQL: {preset.n_steps:,} steps")
    factored = trainer.train_factored()
    log("[4/4] Results")
    rows = [spin.row, factored.row]
    write_csv(folder / "results.csv", rows)
    write_csv(folder / "curves.csv", [*spin.curve, *factored.curve])
    _plot(folder / "curves.png", spin, factored, preset, dataset)
    log(format_table(rows))
    log(
        f"\nReturns are means over {FINAL_EPISODES} seeded episodes, actions sampled; the score "
        "is 0 for random actions and 100 for the published expert.\n"
        f"Saved in {folder}: curves.png, curves.csv, results.csv, spin_iql.d3.\n\n"
        "How to go on:\n"
        "  import d3rlpy, spin_d3rlpy\n"
        f'  policy = d3rlpy.load_learnable("{folder / "spin_iql.d3"}")\n'
        f'  dataset, env = spin_d3rlpy.load_dataset("{DATASET}")\n'
        "  observation, _ = env.reset(seed=0)\n"
        "  action = policy.predict(observation[None])[0]\n"
        "The paper's sizes: spin-d3rlpy demo --preset paper (days on a CPU; --device cuda:0)."
    )
    return rows


@dataclasses.dataclass(frozen=True)
class _Trained:
    """One algorithm's table row and learning curve."""

    row: dict[str, Any]
    curve: list[dict[str, Any]]


class _Trainer:
    """Trains the algorithms on one dataset, or reads back what an earlier run left."""

    def __init__(
        self,
        folder: Path,
        settings: DemoSettings,
        preset: Preset,
        dataset: DeviceReplayBuffer,
        env: gymnasium.Env[Any, Any],
        show_progress: bool,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.preset = preset
        self.dataset = dataset
        self.show_progress = show_progress
        self.logs = FileAdapterFactory(str(folder / "logs"))
        self.evaluator = LockstepEvaluator(env, CURVE_EPISODES, EVALUATION_SEED, MODE)
        self.final_evaluator = LockstepEvaluator(env, FINAL_EPISODES, EVALUATION_SEED, MODE)

    def train_spin(self) -> _Trained:
        """Pre-trains the ASM and trains SPIN-IQL on it."""
        asm_path, asm_csv = self.folder / "asm.safetensors", self.folder / "asm.csv"
        if not (asm_path.exists() and asm_csv.exists()):
            d3rlpy.seed(self.settings.seed)
            pretrainer = self._create_spin()
            epochs = pretrainer.pretrain(
                self.dataset,
                experiment_name="spin_iql",
                logger_adapter=self.logs,
                show_progress=self.show_progress,
            )
            assert pretrainer.asm is not None
            save_asm(pretrainer.asm, asm_path)
            write_csv(asm_csv, [epoch.row() for epoch in epochs])
        last = _read_csv(asm_csv)[-1]
        # From the file also when it was just written, so that a rerun trains the same.
        return self._train(
            self._create_spin(load_asm(asm_path)),
            "spin_iql",
            "SPIN-IQL",
            {
                "pretrain_updates": int(last["step"]),
                "pretrain_samples": int(last["samples"]),
                "pretrain_seconds": round(float(last["seconds"]), 1),
            },
        )

    def _create_spin(self, asm: ActionStructureModel | None = None) -> SPINIQL:
        return SPINIQL(
            device=self.settings.device,
            batch_size=self.preset.batch_size,
            precision=self.preset.precision,
            actor_encoder_factory=SPINEncoderFactory(transformer=self.preset.transformer),
            pretraining=self.preset.pretraining,
            asm=asm,
        )

    def train_factored(self) -> _Trained:
        """Trains factored IQL."""
        algo = FactoredIQL(
            device=self.settings.device,
            batch_size=self.preset.batch_size,
            precision=self.preset.precision,
        )
        nothing = {"pretrain_updates": 0, "pretrain_samples": 0, "pretrain_seconds": 0.0}
        return self._train(algo, "factored_iql", "F-IQL", nothing)

    def _train(
        self, algo: SPINIQL | FactoredIQL, name: str, label: str, pretraining: dict[str, Any]
    ) -> _Trained:
        row_csv, curve_csv = self.folder / f"{name}_row.csv", self.folder / f"{name}.csv"
        if row_csv.exists() and curve_csv.exists():
            return _Trained(_read_csv(row_csv)[0], _read_csv(curve_csv))
        curve: list[dict[str, Any]] = []
        evaluation_seconds = 0.0

        def evaluate(step: int) -> None:
            nonlocal evaluation_seconds
            started = time.monotonic()
            returns = self.evaluator.returns(algo)
            curve.append(
                {
                    "algorithm": label,
                    "step": step,
                    "mean_return": round(float(returns.mean()), 2),
                    "std_return": round(float(returns.std()), 2),
                    "episodes": len(returns),
                }
            )
            evaluation_seconds += time.monotonic() - started

        d3rlpy.seed(self.settings.seed)
        algo.build_with_dataset(self.dataset)
        started = time.monotonic()
        evaluate(0)
        algo.fit(
            self.dataset,
            n_steps=self.preset.n_steps,
            n_steps_per_epoch=self.preset.n_steps_per_epoch,
            experiment_name=name,
            logger_adapter=self.logs,
            show_progress=self.show_progress,
            save_interval=self.preset.n_steps,
            epoch_callback=lambda _algo, _epoch, step: evaluate(step),
        )
        seconds = time.monotonic() - started - evaluation_seconds
        algo.save(str(self.folder / f"{name}.d3"))
        returns = self.final_evaluator.returns(algo)
        score = normalized_score(ENV_ID, float(returns.mean()), bins=BINS)
        row = {
            "algorithm": label,
            "return": f"{returns.mean():.1f}",
            "std": f"{returns.std():.1f}",
            "score": f"{score:.1f}",
            "steps": self.preset.n_steps,
            "seconds": round(seconds, 1),
            **pretraining,
        }
        write_csv(curve_csv, curve)
        write_csv(row_csv, [row])
        return _Trained(row, curve)


def _start_anew_if_changed(
    folder: Path, settings: DemoSettings, dataset: DeviceReplayBuffer
) -> None:
    """Removes results that belong to other settings, data, sizes or versions."""
    identity = {
        "settings": dataclasses.asdict(settings),
        "sizes": dataclasses.asdict(get_preset(settings.preset)),
        "dataset": DATASET,
        "transitions": dataset.transition_count,
        "rewards_sha256": hashlib.sha256(dataset.rewards.cpu().numpy().tobytes()).hexdigest(),
        **describe_machine(),
    }
    path = folder / "settings.json"
    if path.exists() and json.loads(path.read_text()) == identity:
        return
    for pattern in ("asm.*", "spin_iql*.csv", "factored_iql*.csv", "*.d3"):
        for file in folder.glob(pattern):
            file.unlink()
    path.write_text(json.dumps(identity, indent=1) + "\n")


def _read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open() as f:
        return list(csv.DictReader(f))


def _plot(
    path: Path, spin: _Trained, factored: _Trained, preset: Preset, dataset: DeviceReplayBuffer
) -> None:
    def points(trained: _Trained) -> tuple[list[float], list[float], list[float]]:
        def column(key: str) -> list[float]:
            return [float(row[key]) for row in trained.curve]

        # Standard error of the mean over the episodes.
        episodes = column("episodes")
        errors = [s / n**0.5 for s, n in zip(column("std_return"), episodes, strict=True)]
        return column("step"), column("mean_return"), errors

    updates = preset.pretraining.n_updates(dataset.transition_count)
    scores = reference_scores(ENV_ID, bins=BINS)
    assert scores is not None
    data_mean = float(np.mean([episode.compute_return() for episode in dataset.episodes]))
    plot_learning_curves(
        path,
        {
            f"SPIN-IQL (after {updates:,} pre-training updates)": points(spin),
            "F-IQL": points(factored),
        },
        f"cheetah-run, 3 bins, random-medium-expert, {dataset.transition_count:,} transitions",
        reference_lines={"published expert": scores[1], "mean of the dataset": data_mean},
    )
