"""Does the initialization of critics matter? Factored IQL and BCQ, ours and the published one.

SPIN's published critics of IQL and BCQ draw weights and biases within 1/sqrt(outputs), PyTorch's
layers and ours within 1/sqrt(inputs). Writes and prints the returns of both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import d3rlpy
import torch
from d3rlpy.logging import NoopAdapterFactory
from torch import nn

from spin_d3rlpy import FactoredBCQ, FactoredIQL, LockstepEvaluator, load_dataset
from spin_d3rlpy.evaluation.metrics import ActionMode
from spin_d3rlpy.files.results import format_table, write_csv

DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"


def start_as_published(critics: nn.Module) -> None:
    """Redraws every layer's weights and biases within 1/sqrt(outputs)."""
    for layer in critics.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.out_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.uniform_(layer.bias, -bound, bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=60_000, help="transitions of the dataset")
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps")
    parser.add_argument("--epoch", type=int, default=1_000, help="steps between evaluations")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()

    dataset, env = load_dataset(DATASET, size=arguments.size)
    rows: list[dict[str, Any]] = []
    # As in the paper: IQL samples, BCQ takes the maximum.
    kinds: list[tuple[Any, ActionMode]] = [(FactoredIQL, "sample"), (FactoredBCQ, "greedy")]
    for algo_class, mode in kinds:
        evaluator = LockstepEvaluator(env, arguments.episodes, 100, mode)
        for seed in range(arguments.seeds):
            for start in ("inputs", "outputs"):
                d3rlpy.seed(seed)
                algo = algo_class(device="cpu:0")
                algo.build_with_dataset(dataset)
                modules = algo.impl.modules
                if start == "outputs":
                    start_as_published(modules.q_funcs)
                    modules.targ_q_funcs.load_state_dict(modules.q_funcs.state_dict())
                torch.manual_seed(seed)  # the same batches from both starts
                for epoch, metrics in algo.fitter(
                    dataset,
                    arguments.steps,
                    arguments.epoch,
                    logger_adapter=NoopAdapterFactory(),
                    evaluators={"return": evaluator},
                ):
                    run = {"algorithm": algo_class.__name__, "initialization": start, "seed": seed}
                    found = {k: f"{metrics[k]:.4g}" for k in ("return", "critic_loss")}
                    rows.append({**run, "step": epoch * arguments.epoch, **found})
                    write_csv(Path("critic_initialization.csv"), rows)
    env.close()
    print(format_table([row for row in rows if row["step"] == rows[-1]["step"]]))


if __name__ == "__main__":
    main()
