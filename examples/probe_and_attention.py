"""Linear probe and attention maps of a pre-trained and an untrained model.

Run with `python examples/probe_and_attention.py`, or with `--asm` and a file of your own; minutes
on a CPU.
"""

import argparse
from pathlib import Path

import d3rlpy

from spin_d3rlpy import PretrainingConfig, TransformerConfig, load_asm, load_dataset
from spin_d3rlpy.asm import ActionStructureModel, pretrain
from spin_d3rlpy.asm.probe import ProbeConfig, attention_maps, linear_probe
from spin_d3rlpy.files.results import format_table
from spin_d3rlpy.runs.plots import plot_attention


def main(asm_file: Path | None, size: int, updates: int, probe_updates: int, folder: Path) -> None:
    dataset, _ = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    training, held_out = dataset.split(0.1)
    d3rlpy.seed(0)
    sizes = TransformerConfig(width=64, n_blocks=2)
    trained = ActionStructureModel(dataset.observations.shape[1], dataset.nvec, sizes)
    if asm_file is not None:
        trained = load_asm(asm_file)
    untrained = ActionStructureModel(trained.observation_size, trained.nvec, trained.config)
    if asm_file is None:
        pretrain(trained, training, PretrainingConfig(max_updates=updates, precision="auto"))

    labels = [f"state {i}" for i in range(trained.transformer.n_state_tokens)]
    labels += [f"slot {i}" for i in range(len(trained.nvec))]
    observations, actions = held_out.sample_observations_and_actions(1_024)
    rows = []
    for name, asm in {"untrained": untrained, "pretrained": trained}.items():
        result = linear_probe(asm, training, held_out, ProbeConfig(n_updates=probe_updates))
        shares = {
            "slots": result.slot,
            "whole actions": result.exact,
            "if independent": result.independent,
        }
        rows.append({"model": name, **{k: f"{v:.1%}" for k, v in shares.items()}})
        maps = attention_maps(asm, observations, actions).numpy()
        plot_attention(folder / f"attention_{name}.png", maps, labels, name)
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asm", type=Path, help="file of a pre-trained model")
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--updates", type=int, default=2_000, help="of pre-training")
    parser.add_argument("--probe-updates", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, default=Path(), help="output folder")
    args = parser.parse_args()
    main(args.asm, args.size, args.updates, args.probe_updates, args.folder)
