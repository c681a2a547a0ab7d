"""Compare pre-training by masked (MAM), variational (VAM) and contrastive (CAM) action modeling.

A linear probe of the frozen trunk makes the three comparable. Run with `python
examples/pretraining_objectives.py`; minutes on a CPU.
"""

import argparse
import time
from typing import get_args

import d3rlpy

from spin_d3rlpy import PretrainingConfig, TransformerConfig, load_dataset
from spin_d3rlpy.asm import ActionStructureModel, pretrain
from spin_d3rlpy.asm.pretraining import ObjectiveName
from spin_d3rlpy.asm.probe import ProbeConfig, linear_probe
from spin_d3rlpy.files.results import format_table


def main(size: int, updates: int, probe_updates: int) -> None:
    dataset, _ = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    training, held_out = dataset.split(0.1)
    probe = ProbeConfig(n_updates=probe_updates)
    rows = []
    for objective in (None, *get_args(ObjectiveName)):
        d3rlpy.seed(0)
        asm = ActionStructureModel(
            dataset.observations.shape[1], dataset.nvec, TransformerConfig(width=64, n_blocks=2)
        )
        started = time.monotonic()
        if objective is not None:
            config = PretrainingConfig(objective=objective, max_updates=updates, precision="auto")
            pretrain(asm, training, config)
        seconds = time.monotonic() - started
        result = linear_probe(asm, training, held_out, probe)
        rows.append(
            {
                "objective": objective or "untrained",
                "seconds": round(seconds),
                "probe: slots": f"{result.slot:.1%}",
                "whole actions": f"{result.exact:.1%}",
                "guessing": f"{result.uniform_exact:.1%}",
            }
        )
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--updates", type=int, default=1_000, help="of each pre-training")
    parser.add_argument("--probe-updates", type=int, default=1_000)
    args = parser.parse_args()
    main(args.size, args.updates, args.probe_updates)
