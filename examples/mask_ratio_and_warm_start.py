"""Start as behavior cloning: mask ratios up to 1 in pre-training, warm-started queries and heads.

With the published ratio of 15 % the model never sees a fully hidden action, its input in offline
RL. With ratios drawn up to 1 it does, and a policy initialized from its mask tokens and heads
imitates the data before its first gradient step. Run with `python
examples/mask_ratio_and_warm_start.py`; minutes on a CPU.
"""

import argparse
from typing import Any

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    LockstepEvaluator,
    PretrainingConfig,
    TransformerConfig,
    load_dataset,
)
from spin_d3rlpy.files.results import format_table

COLD: dict[str, Any] = {}
WARM: dict[str, Any] = {"query_init": "mask", "head_init": "asm"}
CASES = {
    "15 %, cold start": (None, COLD),
    "15 %, warm start": (None, WARM),
    "15 to 100 %, warm start": (1.0, WARM),
}


def main(size: int, episodes: int, pretraining_updates: int, steps: int) -> None:
    dataset, env = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    evaluator = LockstepEvaluator(env, episodes, mode="sample")
    rows = []
    for name, (mask_prob_max, start) in CASES.items():
        algo = SPINIQL(
            policy=SPIN(
                transformer=TransformerConfig(width=64, n_blocks=2),
                pretraining=PretrainingConfig(
                    max_updates=pretraining_updates, mask_prob_max=mask_prob_max, precision="auto"
                ),
                **start,
            ),
        )
        algo.pretrain(dataset)
        before = evaluator(algo)
        algo.fit(dataset, n_steps=steps, n_steps_per_epoch=steps)
        returns = {"return at step 0": before, f"after {steps}": evaluator(algo)}
        rows.append({"case": name, **{k: round(v, 1) for k, v in returns.items()}})
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=2_000, help="gradient steps")
    args = parser.parse_args()
    main(args.size, args.episodes, args.pretraining_updates, args.steps)
