"""Compare SPIN with RePreM, the baseline that pre-trains a state encoder on trajectories.

Run with `python examples/reprem.py`; minutes on a CPU.
"""

import argparse
from typing import Any

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    LockstepEvaluator,
    PretrainingConfig,
    RePreM,
    RePreMConfig,
    RePreMIQL,
    RePreMPretrainingConfig,
    TransformerConfig,
    load_dataset,
)
from spin_d3rlpy.files.results import format_table


def main(size: int, episodes: int, pretraining_updates: int, steps: int) -> None:
    dataset, env = load_dataset("spin/cheetah-run-b3/random-medium-expert-v0", size=size)
    evaluator = LockstepEvaluator(env, episodes, mode="sample")
    algorithms: dict[str, Any] = {
        "SPIN-IQL": SPINIQL(
            policy=SPIN(
                transformer=TransformerConfig(width=64, n_blocks=2),
                pretraining=PretrainingConfig(max_updates=pretraining_updates, precision="auto"),
            )
        ),
        "RePreM-IQL": RePreMIQL(
            policy=RePreM(
                sizes=RePreMConfig(width=64, n_blocks=2),
                pretraining=RePreMPretrainingConfig(
                    max_updates=pretraining_updates, precision="auto"
                ),
            )
        ),
    }
    rows = []
    for name, algo in algorithms.items():
        algo.fit(dataset, n_steps=steps, n_steps_per_epoch=steps)
        rows.append({"algorithm": name, "return": round(evaluator(algo), 1)})
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=2_000, help="gradient steps")
    args = parser.parse_args()
    main(args.size, args.episodes, args.pretraining_updates, args.steps)
