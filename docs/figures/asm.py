"""Measures and draws what pre-training teaches: `python docs/figures/asm.py`, minutes on a CPU.

Pre-trains a small ASM on cheetah-run (random-medium-expert, 3 bins), writes `asm.csv` and draws the
figures of docs/explanation/how-spin-works.md from that run.
"""

import itertools
from pathlib import Path

import d3rlpy
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from spin_d3rlpy import PretrainingConfig, TransformerConfig, load_dataset
from spin_d3rlpy.asm import ActionStructureModel, pretrain
from spin_d3rlpy.asm.probe import ProbeConfig, attention_maps, linear_probe
from spin_d3rlpy.files.results import write_csv, write_json
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.runs.plots import COLORS, plot_attention, save_figure

FOLDER = Path(__file__).parent
DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
SIZES = TransformerConfig(width=64, n_blocks=2, dropout=0.0, attention_dropout=0.0)
ROWS = 4_096
MEASURED = (0, 125, 250, 500, 1_000, 2_000)  # updates


def corrupt(actions: torch.Tensor) -> torch.Tensor:
    """Gives one slot of every row another row's choice."""
    corrupted = actions.clone()
    slots = torch.randint(actions.shape[1], (len(actions),))
    corrupted[range(len(actions)), slots] = actions[torch.randperm(len(actions)), slots]
    return corrupted


def main() -> None:
    """Trains, measures and draws."""
    dataset, env = load_dataset(DATASET)
    env.close()
    training, held_out = dataset.split(0.1)
    d3rlpy.seed(0)
    asm = ActionStructureModel(dataset.observations.shape[1], dataset.nvec, SIZES)
    observations, actions = held_out.sample_observations_and_actions(ROWS)
    corrupted = corrupt(actions)
    changed = (corrupted != actions).any(1)
    rows = []

    def measure(updates: int) -> None:
        true = asm.log_likelihood(observations, actions).total
        false = asm.log_likelihood(observations[changed], corrupted[changed]).total
        labels = np.concatenate([np.zeros(len(true)), np.ones(len(false))])
        probe = linear_probe(asm, training, held_out, ProbeConfig(n_updates=300))
        rows.append(
            {
                "updates": updates,
                "samples": updates * 1_024,
                "probe_slot": round(probe.slot, 4),
                "probe_exact": round(probe.exact, 4),
                "corruption_auc": round(roc_auc_score(labels, -torch.cat([true, false])), 4),
            }
        )
        print(rows[-1], flush=True)
        asm.train()

    measure(0)
    for before, after in itertools.pairwise(MEASURED):
        # Adam restarts at each measurement, which costs it a few updates.
        pretrain(asm, training, PretrainingConfig(max_updates=after - before, precision="auto"))
        measure(after)
    asm.eval()
    write_csv(FOLDER / "asm.csv", rows)
    write_json(FOLDER / "asm.json", {"dataset": DATASET, "seed": 0, **describe_machine()})
    labels = ["state", *(f"slot {i}" for i in range(len(dataset.nvec)))]
    maps = attention_maps(asm, observations, actions).numpy()
    plot_attention(FOLDER / "attention.png", maps, labels, "attention after 2,000 updates")
    true = asm.log_likelihood(observations, actions).total
    false = asm.log_likelihood(observations[changed], corrupted[changed]).total
    draw_support(true.numpy(), false.numpy())
    draw_learning(rows)


def draw_support(true: np.ndarray, false: np.ndarray) -> None:
    """Draws how the scores of logged and corrupted actions differ."""
    figure = Figure(figsize=(6.4, 3.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    bins = np.linspace(min(true.min(), false.min()), 0.0, 60).tolist()
    for color, name, scores in (
        (COLORS[0], "as in the data", true),
        (COLORS[1], "one joint swapped", false),
    ):
        axes.hist(
            scores, bins, density=True, histtype="stepfilled", alpha=0.6, color=color, label=name
        )
    axes.set_xlabel("masked pseudo-log-likelihood of the action")
    axes.set_ylabel("density")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, FOLDER / "support.png")


def draw_learning(rows: list[dict[str, float]]) -> None:
    """Draws what is known after how many updates."""
    figure = Figure(figsize=(6.4, 3.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    x = [row["updates"] for row in rows]
    lines = {
        "corruptions found (ROC AUC)": "corruption_auc",
        "linear probe, slots": "probe_slot",
        "linear probe, whole actions": "probe_exact",
    }
    for i, (name, key) in enumerate(lines.items()):
        axes.plot(x, [row[key] for row in rows], marker="os^"[i], color=COLORS[i], label=name)
    axes.set_ylim(0, 1)
    axes.set_xlabel("updates of pre-training (1,024 rows each)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, FOLDER / "pretraining.png")


if __name__ == "__main__":
    main()
